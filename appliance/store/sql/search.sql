-- name: unsearched
-- $1 tenant, $2 rows at most, $3 characters of each message that are searched: messages that no search finds
-- yet, by conversation, each with how often that was written to; a conversation that has none is a row too.
SELECT c.conversation_id, c.written, m.message_id, m.text
FROM (
    SELECT conversation_id, written
    FROM appliance.conversations
    WHERE tenant = $1::text AND written <> searched
    ORDER BY conversation_id
    LIMIT $2::integer
) AS c
LEFT JOIN LATERAL (
    SELECT m.message_id, left(m.text, $3::integer) AS text
    FROM appliance.messages AS m
    WHERE m.tenant = $1::text AND m.conversation_id = c.conversation_id
      AND NOT EXISTS (
          SELECT FROM appliance.search_messages AS s
          WHERE s.tenant = $1::text AND s.conversation_id = m.conversation_id
            AND s.message_id = m.message_id)
    OFFSET 0
) AS m ON true
ORDER BY c.conversation_id
LIMIT $2::integer;

-- name: add_searched
-- $1 tenant, $2 conversations, $3 messages, $4 terms of each as an array's text; $5 the conversations of which
-- these are all, $6 how often each was written to when they were read: what was written since is looked at
-- the next time. A message that is being deleted is waited for, and then not there; a conversation that is
-- being written to is not waited for.
WITH alive AS (
    SELECT m.conversation_id, m.message_id, given.terms
    FROM unnest($2::uuid[], $3::uuid[], $4::text[]) AS given (conversation_id, message_id, terms)
    CROSS JOIN LATERAL (
        SELECT conversation_id, message_id
        FROM appliance.messages
        WHERE tenant = $1::text AND conversation_id = given.conversation_id
          AND message_id = given.message_id
        FOR KEY SHARE
    ) AS m
), added AS (
    INSERT INTO appliance.search_messages (tenant, conversation_id, message_id, terms)
    SELECT $1::text, conversation_id, message_id, terms::integer[] FROM alive
    ON CONFLICT DO NOTHING
), whole AS (
    SELECT c.conversation_id, given.written
    FROM unnest($5::uuid[], $6::bigint[]) AS given (conversation_id, written)
    CROSS JOIN LATERAL (
        SELECT conversation_id
        FROM appliance.conversations
        WHERE tenant = $1::text AND conversation_id = given.conversation_id
          AND searched < given.written
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
)
UPDATE appliance.conversations AS c
SET searched = whole.written
FROM whole
WHERE c.tenant = $1::text AND c.conversation_id = whole.conversation_id;

-- name: search
-- $1 tenant, $2 terms of the text, $3 the text, $4 conversations at most, $5 and $6 the place before which
-- they are or nulls, $7 characters of a message that are searched.
-- Terms say which conversations may have it; of these, newest first, the texts are looked at, until there
-- are enough. Titles have no terms: they are short, and all of them are looked at.
WITH candidate AS MATERIALIZED (
    SELECT DISTINCT conversation_id
    FROM appliance.search_messages
    WHERE tenant = $1::text AND terms @> $2::integer[]
)
SELECT c.tenant, c.conversation_id, c.title, c.character_id, c.head_id, c.anchor_id, c.prompt_version,
       c.scene, c.experiment, c.arm, c.created_at, c.updated_at, hit.message_id, hit.role, hit.excerpt
FROM appliance.conversations AS c
LEFT JOIN LATERAL (
    SELECT m.message_id, m.role,
           substr(m.text, greatest(1, strpos(translate(lower(left(m.text, $7::integer)), 'ς', 'σ'), translate(lower($3::text), 'ς', 'σ')) - 60), 200)
               AS excerpt
    FROM appliance.search_messages AS s
    CROSS JOIN LATERAL (
        SELECT message_id, role, text, created_at, depth
        FROM appliance.messages
        WHERE tenant = $1::text AND conversation_id = s.conversation_id AND message_id = s.message_id
        LIMIT 1
    ) AS m
    WHERE c.conversation_id IN (SELECT conversation_id FROM candidate)
      AND s.tenant = $1::text AND s.conversation_id = c.conversation_id AND s.terms @> $2::integer[]
      AND strpos(translate(lower(left(m.text, $7::integer)), 'ς', 'σ'), translate(lower($3::text), 'ς', 'σ')) > 0
    ORDER BY m.created_at DESC, m.depth DESC
    LIMIT 1
) AS hit ON true
WHERE c.tenant = $1::text
  AND ($5::timestamptz IS NULL OR (c.updated_at, c.conversation_id) < ($5::timestamptz, $6::uuid))
  AND (hit.message_id IS NOT NULL OR strpos(translate(lower(c.title), 'ς', 'σ'), translate(lower($3::text), 'ς', 'σ')) > 0)
ORDER BY c.updated_at DESC, c.conversation_id DESC
LIMIT $4::integer;
