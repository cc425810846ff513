-- name: settings
-- A report reads everything once: hashes of the people and their chats beside a scan of the messages, shared by some
-- processes. What is known of the numbers before they are counted would mislead it to look up each, or to sort all.
-- Tells the time that all of the transaction is of.
SELECT now(), set_config('plan_cache_mode', 'auto', true), set_config('jit', 'off', true),
       set_config('enable_nestloop', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_sort', 'off', true), set_config('join_collapse_limit', '1', true),
       set_config('from_collapse_limit', '1', true), set_config('work_mem', '256MB', true),
       set_config('max_parallel_workers_per_gather', '2', true), set_config('parallel_setup_cost', '0', true),
       set_config('idle_in_transaction_session_timeout', '60s', true);

-- name: only_read
SET TRANSACTION READ ONLY;

-- name: look_at
-- What follows in this transaction is of this time.
SELECT set_config('appliance.looked_at', $1::timestamptz::text, true);

-- name: people
SELECT p.person, p.arm,
       date_part('epoch', p.exposed_at - (SELECT begins FROM appliance.experiment_span($1::text))) AS exposed_s
FROM appliance.experiment_people($1::text) AS p;

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
