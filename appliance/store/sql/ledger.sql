-- columns: conversation
tenant, conversation_id, title, character_id, head_id, anchor_id, prompt_version, scene,
experiment, arm, created_at, updated_at

-- columns: message
message_id, parent_id, role, text, token_ids, tokenizer, lore, finish_reason, prompt_tokens,
prefix_hit_tokens, prompt_version, scene_digest, anchor_id, speaker, created_at

-- name: open_conversation
-- $1 tenant, $2 conversation, $3 title, $4 character or null, $5 scene or null, $6 when, $7 the version of
-- the character whose greetings they are, or null; $8 turn keys, $9 message ids, $10 texts of the greetings,
-- $11 their speakers (null outside of groups): openings without a parent, the first of which is shown. They are read in the order of their times, hence the
-- microseconds between. $12 who talks, $13 the experiment and $14 the arm it is opened in, or nulls; $15 whether
-- the greetings differ from those of another arm. One statement: a conversation that is there has its greetings.
WITH conversation AS (
    INSERT INTO appliance.conversations (
        tenant, conversation_id, title, character_id, scene, head_id, prompt_version, created_at,
        updated_at, user_id, experiment, arm, exposed_at)
    VALUES ($1::text, $2::uuid, $3::text, $4::text, $5::jsonb, ($9::uuid[])[1], $7::text,
            $6::timestamptz, $6::timestamptz, $12::text, $13::text, $14::text,
            CASE WHEN $15::boolean THEN $6::timestamptz END)
    ON CONFLICT (tenant, conversation_id) DO NOTHING
    RETURNING conversation_id
), greeting AS (
    INSERT INTO appliance.messages (
        tenant, conversation_id, message_id, parent_id, turn_key, depth, created_at,
        role, text, finish_reason, speaker)
    SELECT $1::text, $2::uuid, given.message_id, NULL, given.turn_key, 0,
           $6::timestamptz + given.place * interval '1 microsecond', 'assistant', given.text, 'stop',
           given.speaker
    FROM conversation
    CROSS JOIN unnest($8::uuid[], $9::uuid[], $10::text[], $11::text[])
        WITH ORDINALITY AS given (turn_key, message_id, text, speaker, place)
)
SELECT EXISTS (SELECT FROM conversation) AS is_new;

-- name: get_conversation
SELECT {conversation}
FROM appliance.conversations
WHERE tenant = $1::text AND conversation_id = $2::uuid;

-- name: newest_conversations
SELECT {conversation}
FROM appliance.conversations
WHERE tenant = $1::text
ORDER BY updated_at DESC, conversation_id DESC
LIMIT $2::integer;

-- name: conversations_before
SELECT {conversation}
FROM appliance.conversations
WHERE tenant = $1::text AND (updated_at, conversation_id) < ($3::timestamptz, $4::uuid)
ORDER BY updated_at DESC, conversation_id DESC
LIMIT $2::integer;

-- name: path
-- From a message up to its root, or up to but not including message $4. The limit makes each step one
-- look-up by primary key; joined plainly, the planner would read the whole conversation once.
WITH RECURSIVE path AS (
    SELECT depth, {message}
    FROM appliance.messages
    WHERE tenant = $1::text AND conversation_id = $2::uuid AND message_id = $3::uuid
      AND message_id IS DISTINCT FROM $4::uuid
    UNION ALL
    SELECT m.depth, {m.message}
    FROM path
    CROSS JOIN LATERAL (
        SELECT depth, {message}
        FROM appliance.messages
        WHERE tenant = $1::text AND conversation_id = $2::uuid AND message_id = path.parent_id
        LIMIT 1
    ) AS m
    WHERE path.parent_id IS DISTINCT FROM $4::uuid
)
SELECT {message}
FROM path
ORDER BY depth;

-- name: messages
-- The whole tree, parents before children; of a tree larger than the limit, the newest messages.
SELECT {message}
FROM (
    SELECT depth, {message}
    FROM appliance.messages
    WHERE tenant = $1::text AND conversation_id = $2::uuid
    ORDER BY created_at DESC, depth DESC
    LIMIT $3::integer
) AS newest
ORDER BY created_at, depth;

-- name: get_message
SELECT {message}
FROM appliance.messages
WHERE tenant = $1::text AND conversation_id = $2::uuid AND message_id = $3::uuid;

-- name: append_turn
-- $1 tenant, $2 conversation, $3 turn key, $4 parent or null, $5 title or null, $6 anchor or null,
-- $7..$11 user message or nulls: id, role, text, token ids, tokenizer,
-- $12..$19 reply: id, role, text, token ids, tokenizer, finish reason, prompt tokens, hit tokens,
-- $20 the version its prompt was made with, or null: the conversation's if it has none yet,
-- $21 lore of the user's message or null, $22 digest of what the user had set, or null,
-- $23 when it ended, of a turn that waited in the journal, or null: now,
-- $24 the member of a group who speaks, or null,
-- $25 whether the prompt differs from what another arm of the conversation's experiment would have made,
-- $26 and $27 milliseconds to the reply's first text and to its end, or nulls.
--
-- The row locks make a turn wait for a deletion of its conversation or parent, and then find nothing
-- to append to. The first message inserted is the gate: when the send is already stored it conflicts,
-- and neither the second message nor the head follows. A clock set back does not make a message older
-- than its parent.
WITH conversation AS (
    SELECT conversation_id, head_id
    FROM appliance.conversations
    WHERE tenant = $1::text AND conversation_id = $2::uuid
    FOR NO KEY UPDATE
), parent AS (
    SELECT m.depth, m.created_at
    FROM conversation
    JOIN appliance.messages AS m ON m.tenant = $1::text AND m.conversation_id = $2::uuid
    WHERE m.message_id = $4::uuid
    FOR KEY SHARE OF m
), place AS (
    SELECT 0 AS depth, coalesce($23::timestamptz, now()) AS created_at
    FROM conversation
    WHERE $4::uuid IS NULL
    UNION ALL
    SELECT depth + 1, greatest(coalesce($23::timestamptz, now()), created_at) FROM parent
), user_message AS (
    INSERT INTO appliance.messages (
        tenant, conversation_id, message_id, parent_id, turn_key, depth, created_at,
        role, text, token_ids, tokenizer, lore, is_edit)
    SELECT $1::text, $2::uuid, $7::uuid, $4::uuid, $3::uuid, place.depth, place.created_at,
           $8::text, $9::text, $10::bytea, $11::text, $21::jsonb,
           CASE WHEN conversation.head_id IS DISTINCT FROM $4::uuid THEN true END
    FROM place
    CROSS JOIN conversation
    WHERE $7::uuid IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING message_id, depth, created_at
), reply_place AS (
    SELECT message_id AS parent_id, depth + 1 AS depth, created_at FROM user_message
    UNION ALL
    SELECT $4::uuid, depth, created_at FROM place WHERE $7::uuid IS NULL
), reply AS (
    INSERT INTO appliance.messages (
        tenant, conversation_id, message_id, parent_id, turn_key, depth, created_at,
        role, text, token_ids, tokenizer, finish_reason, prompt_tokens, prefix_hit_tokens,
        prompt_version, scene_digest, anchor_id, speaker, ttft_ms, reply_ms)
    SELECT $1::text, $2::uuid, $12::uuid, p.parent_id, $3::uuid, p.depth, p.created_at,
           $13::text, $14::text, $15::bytea, $16::text, $17::text, $18::integer, $19::integer,
           $20::text, $22::bytea, $6::uuid, $24::text, $26::integer, $27::integer
    FROM reply_place AS p
    ON CONFLICT DO NOTHING
    RETURNING message_id, created_at
), head AS (
    UPDATE appliance.conversations AS c
    SET head_id = reply.message_id,
        anchor_id = coalesce($6::uuid, c.anchor_id),
        prompt_version = coalesce(c.prompt_version, $20::text),
        title = CASE WHEN c.title = '' THEN coalesce($5::text, '') ELSE c.title END,
        exposed_at = CASE WHEN $25::boolean THEN coalesce(c.exposed_at, reply.created_at)
                          ELSE c.exposed_at END,
        updated_at = greatest(coalesce($23::timestamptz, now()), c.updated_at),
        written = c.written + 1
    FROM reply
    WHERE c.tenant = $1::text AND c.conversation_id = $2::uuid
    RETURNING reply.created_at
)
SELECT EXISTS (SELECT FROM conversation) AS has_conversation,
       EXISTS (SELECT FROM place) AS has_place,
       (SELECT created_at FROM head) AS created_at;

-- name: get_turn
-- The messages of one send under parent $4 (null: as a root): the user's and the reply, or a reply.
WITH first AS (
    SELECT depth, {message}
    FROM appliance.messages
    WHERE tenant = $1::text AND conversation_id = $2::uuid AND turn_key = $3::uuid
      AND parent_id = $4::uuid
    UNION ALL
    SELECT depth, {message}
    FROM appliance.messages
    WHERE tenant = $1::text AND conversation_id = $2::uuid AND turn_key = $3::uuid
      AND parent_id IS NULL AND $4::uuid IS NULL
), turn AS (
    SELECT depth, {message}
    FROM first
    UNION ALL
    SELECT m.depth, {m.message}
    FROM first
    CROSS JOIN LATERAL (
        SELECT depth, {message}
        FROM appliance.messages
        WHERE tenant = $1::text AND conversation_id = $2::uuid AND turn_key = $3::uuid
          AND parent_id = first.message_id
        LIMIT 1
    ) AS m
)
SELECT {message}
FROM turn
ORDER BY depth;

-- name: set_head
UPDATE appliance.conversations
SET head_id = $3::uuid, updated_at = greatest(now(), updated_at)
WHERE tenant = $1::text AND conversation_id = $2::uuid
  AND EXISTS (
      SELECT FROM appliance.messages
      WHERE tenant = $1::text AND conversation_id = $2::uuid AND message_id = $3::uuid
  )
RETURNING {conversation};

-- name: rename
UPDATE appliance.conversations
SET title = $3::text
WHERE tenant = $1::text AND conversation_id = $2::uuid
RETURNING {conversation};

-- name: past
SELECT coalesce(left_prompt_versions, ARRAY[]::text[]) AS versions,
       coalesce(left_scenes, ARRAY[]::jsonb[]) AS scenes,
       coalesce(is_untraceable, false) AS is_untraceable
FROM appliance.conversations
WHERE tenant = $1::text AND conversation_id = $2::uuid;

-- name: set_prompt_version
UPDATE appliance.conversations
SET prompt_version = $3::text,
    left_prompt_versions = array_append(
        array_remove(left_prompt_versions, prompt_version), prompt_version)
WHERE tenant = $1::text AND conversation_id = $2::uuid
RETURNING {conversation};

-- name: set_scene
-- The scene before is kept, the latest 32 of them. Without its note: where that is not frozen in messages, it
-- stands behind them.
UPDATE appliance.conversations
SET scene = $3::jsonb,
    left_scenes = (array_prepend(scene - 'note', array_remove(left_scenes, scene - 'note')))[1:32],
    is_untraceable =
        is_untraceable OR cardinality(array_remove(left_scenes, scene - 'note')) >= 32
WHERE tenant = $1::text AND conversation_id = $2::uuid
RETURNING {conversation};

-- name: lock_conversation
SELECT {conversation}
FROM appliance.conversations
WHERE tenant = $1::text AND conversation_id = $2::uuid
FOR UPDATE;

-- name: delete_conversation
DELETE FROM appliance.conversations
WHERE tenant = $1::text AND conversation_id = $2::uuid
RETURNING user_id, experiment, arm, exposed_at IS NOT NULL AS is_exposed;

-- name: delete_messages
DELETE FROM appliance.messages
WHERE tenant = $1::text AND conversation_id = $2::uuid;

-- name: delete_branch
-- A message and all below it.
WITH RECURSIVE branch AS (
    SELECT message_id
    FROM appliance.messages
    WHERE tenant = $1::text AND conversation_id = $2::uuid AND message_id = $3::uuid
    UNION ALL
    SELECT m.message_id
    FROM branch
    JOIN appliance.messages AS m ON m.parent_id = branch.message_id
    WHERE m.tenant = $1::text AND m.conversation_id = $2::uuid
)
DELETE FROM appliance.messages AS m
USING branch
WHERE m.tenant = $1::text AND m.conversation_id = $2::uuid AND m.message_id = branch.message_id
RETURNING m.message_id;

-- name: newest_leaf
-- The newest message at or below message $3, or of the whole conversation when it is null. A message
-- is newer than its parent, so this is a leaf.
WITH RECURSIVE branch AS (
    SELECT message_id, created_at, depth
    FROM appliance.messages
    WHERE tenant = $1::text AND conversation_id = $2::uuid
      AND (message_id = $3::uuid OR ($3::uuid IS NULL AND parent_id IS NULL))
    UNION ALL
    SELECT m.message_id, m.created_at, m.depth
    FROM branch
    JOIN appliance.messages AS m ON m.parent_id = branch.message_id
    WHERE m.tenant = $1::text AND m.conversation_id = $2::uuid
)
SELECT message_id
FROM branch
ORDER BY created_at DESC, depth DESC, message_id
LIMIT 1;

-- name: repair_head
UPDATE appliance.conversations
SET head_id = $3::uuid, anchor_id = $4::uuid, updated_at = greatest(now(), updated_at),
    is_untraceable = is_untraceable OR $5::boolean
WHERE tenant = $1::text AND conversation_id = $2::uuid
RETURNING {conversation};

-- name: live_chats
-- The conversations of a character with activity since $2, by the version they are pinned to (null: by
-- none yet; groups apart, whose members have their own): how many, and the tokens of the prompt and reply
-- at the head of all of them. All tenants', so all partitions: a question of the operator's.
SELECT c.prompt_version,
       count(*) AS conversations,
       coalesce(sum(m.prompt_tokens + coalesce(octet_length(m.token_ids) / 4, 0)), 0)::bigint AS tokens
FROM appliance.conversations AS c
JOIN appliance.messages AS m
    ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id AND m.message_id = c.head_id
WHERE c.updated_at >= $2::timestamptz AND m.prompt_tokens IS NOT NULL
  AND coalesce(c.character_id, $3::text) = $1::text
  AND NOT coalesce(c.scene ? 'members', false)
GROUP BY c.prompt_version
ORDER BY c.prompt_version;

-- name: live_of_version
-- Those of `live_chats` that hold version $4 (with $5 also those that hold none yet), changed last first.
SELECT {c.conversation}
FROM appliance.conversations AS c
JOIN appliance.messages AS m
    ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id AND m.message_id = c.head_id
WHERE c.updated_at >= $2::timestamptz AND m.prompt_tokens IS NOT NULL
  AND coalesce(c.character_id, $3::text) = $1::text
  AND NOT coalesce(c.scene ? 'members', false)
  AND (c.prompt_version = $4::text OR ($5::boolean AND c.prompt_version IS NULL))
ORDER BY c.updated_at DESC, c.conversation_id
LIMIT $6::integer;

-- name: live_groups
-- How many groups with activity since $2 have version $3 of character $1 among their members.
SELECT count(*) AS conversations
FROM appliance.conversations AS c
WHERE c.updated_at >= $2::timestamptz
  AND c.scene -> 'members'
      @> jsonb_build_array(jsonb_build_object('id', $1::text, 'version', $3::text));

-- name: newest_of_character
-- The conversations of a character changed last, whoever's they are; groups apart.
SELECT {conversation}
FROM appliance.conversations
WHERE coalesce(character_id, $2::text) = $1::text AND head_id IS NOT NULL
  AND NOT coalesce(scene ? 'members', false)
ORDER BY updated_at DESC, conversation_id
LIMIT $3::integer;
