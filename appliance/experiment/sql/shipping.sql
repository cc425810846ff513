-- name: replies_since
-- $1 character, $2 the version that was shipped, $3 when. Replies since then: of chats that were opened since, with
-- that version; and of older chats, with the version that they kept; of no experiment's testers. What was found is in
-- tokens of the prompt.
SELECT is_new, count(DISTINCT (tenant, conversation_id)) AS chats, count(*) AS replies,
       sum(prompt_tokens)::bigint AS prompt_tokens, sum(prefix_hit_tokens)::bigint AS hit_tokens,
       (array_agg(prompt_tokens - prefix_hit_tokens ORDER BY created_at))[1] AS first_computed
FROM (
    SELECT c.tenant, c.conversation_id, c.created_at >= $3::timestamptz AS is_new, m.created_at,
           m.prompt_tokens, coalesce(m.prefix_hit_tokens, 0) AS prefix_hit_tokens
    FROM appliance.conversations AS c
    JOIN appliance.messages AS m ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id
    LEFT JOIN appliance.experiments AS e ON e.experiment = c.experiment
    WHERE c.character_id = $1::text AND m.created_at >= $3::timestamptz AND m.prompt_tokens IS NOT NULL
      AND appliance.is_tester(e.overrides, c.tenant, c.user_id) IS NOT TRUE
      AND (m.prompt_version = $2::text) = (c.created_at >= $3::timestamptz)
) AS replies
GROUP BY is_new;
