-- name: moves
-- Where `production` of a character stood, and from when to when; oldest first.
SELECT to_version AS version, moved_at AS starts, coalesce(lead(moved_at) OVER (ORDER BY move_id), now()) AS ends
FROM appliance.prompt_moves
WHERE name = $1::text AND label = 'production'
ORDER BY move_id;

-- name: latencies
-- $1 character; of each period $2 version, $3 start, $4 end. Replies of conversations that were opened in it, on its
-- version, for as long as it lasted: by period, in steps of 1 %. Without those of an experiment's testers.
SELECT p.period - 1 AS period, kind, appliance.time_step(ms) AS step, count(*) AS count
FROM unnest($2::text[], $3::timestamptz[], $4::timestamptz[])
    WITH ORDINALITY AS p (version, starts, ends, period)
JOIN appliance.conversations AS c
    ON c.character_id = $1::text AND c.created_at >= p.starts AND c.created_at < p.ends
JOIN appliance.messages AS m
    ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id
    AND m.created_at >= p.starts AND m.created_at < p.ends AND m.prompt_version = p.version
LEFT JOIN appliance.experiments AS e ON e.experiment = c.experiment
CROSS JOIN LATERAL (VALUES ('ttft', m.ttft_ms), ('reply', m.reply_ms)) AS took (kind, ms)
WHERE ms IS NOT NULL AND appliance.is_tester(e.overrides, c.tenant, c.user_id) IS NOT TRUE
GROUP BY p.period, kind, step;
