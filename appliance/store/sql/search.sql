-- name: unsearched
-- $1 tenant, $2 messages at most, $3 characters of each that are searched: messages that no search finds
-- yet, of the conversations changed since the last time, longest unchanged first; and the time now.
-- Times within a minute are looked at again: a turn is seen only when it is committed.
SELECT m.conversation_id, m.message_id, m.text, c.updated_at, now() AS looked_at
FROM (
    SELECT conversation_id, updated_at
    FROM appliance.conversations
    WHERE tenant = $1::text
      AND updated_at >= coalesce(
          (SELECT through - interval '1 minute' FROM appliance.search_progress WHERE tenant = $1::text),
          '-infinity')
    ORDER BY updated_at, conversation_id
) AS c
CROSS JOIN LATERAL (
    SELECT m.conversation_id, m.message_id, left(m.text, $3::integer) AS text
    FROM appliance.messages AS m
    WHERE m.tenant = $1::text AND m.conversation_id = c.conversation_id
      AND NOT EXISTS (
          SELECT FROM appliance.search_messages AS s
          WHERE s.tenant = $1::text AND s.conversation_id = m.conversation_id
            AND s.message_id = m.message_id)
    OFFSET 0
) AS m
ORDER BY c.updated_at, c.conversation_id
LIMIT $2::integer;

-- name: add_searched
-- $1 tenant, $2 conversations, $3 messages, $4 terms of each as an array's text, $5 how far this goes.
-- A message that is being deleted is waited for, and then not there.
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
)
INSERT INTO appliance.search_progress AS p (tenant, through)
VALUES ($1::text, $5::timestamptz)
ON CONFLICT (tenant) DO UPDATE SET through = greatest(p.through, excluded.through);

-- name: look_again
-- $1 tenants, $2 times: conversations were written that were last changed then, before what was looked at.
UPDATE appliance.search_progress AS p
SET through = least(p.through, given.since)
FROM unnest($1::text[], $2::timestamptz[]) AS given (tenant, since)
WHERE p.tenant = given.tenant AND p.through > given.since;

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
           substr(m.text, greatest(1, strpos(lower(left(m.text, $7::integer)), lower($3::text)) - 60), 200)
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
      AND strpos(lower(left(m.text, $7::integer)), lower($3::text)) > 0
    ORDER BY m.created_at DESC, m.depth DESC
    LIMIT 1
) AS hit ON true
WHERE c.tenant = $1::text
  AND ($5::timestamptz IS NULL OR (c.updated_at, c.conversation_id) < ($5::timestamptz, $6::uuid))
  AND (hit.message_id IS NOT NULL OR strpos(lower(c.title), lower($3::text)) > 0)
ORDER BY c.updated_at DESC, c.conversation_id DESC
LIMIT $4::integer;
