-- name: settings
-- A report reads everything once: a hash of the people beside a scan of the messages. What is known of the number
-- of people before they are counted would mislead it to look up each.
SELECT set_config('statement_timeout', '600s', true), set_config('plan_cache_mode', 'auto', true),
       set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true),
       set_config('work_mem', '256MB', true), set_config('max_parallel_workers_per_gather', '2', true),
       set_config('idle_in_transaction_session_timeout', '60s', true);

-- name: people
SELECT p.person, p.arm, extract(epoch FROM p.exposed_at - s.begins)::float8 AS exposed_s
FROM appliance.experiment_span($1::text) AS s
JOIN appliance.experiment_people($1::text) AS p ON true;

-- name: span
SELECT begins, ends FROM appliance.experiment_span($1::text);

-- name: apart
-- Who is left out of a report, and why.
SELECT count(*) FILTER (WHERE has_two) AS crossed, count(*) FILTER (WHERE is_tester) AS testers,
       coalesce(sum(conversations), 0)::bigint AS conversations, coalesce(sum(exposed), 0)::bigint AS exposed
FROM (
    SELECT min(c.arm) FILTER (WHERE c.exposed_at < s.ends) <> max(c.arm) FILTER (WHERE c.exposed_at < s.ends)
               AND NOT appliance.is_tester(e.overrides, c.tenant, c.user_id) AS has_two,
           appliance.is_tester(e.overrides, c.tenant, c.user_id) AS is_tester,
           count(*) AS conversations, count(c.exposed_at) AS exposed
    FROM appliance.experiments AS e
    JOIN appliance.experiment_span($1::text) AS s ON true
    JOIN appliance.conversations AS c ON c.experiment = e.experiment
    WHERE e.experiment = $1::text
    GROUP BY c.tenant, c.user_id, e.overrides
) AS users;
