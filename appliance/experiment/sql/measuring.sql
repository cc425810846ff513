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
SELECT crossed, testers, conversations, exposed FROM appliance.experiment_apart($1::text);

-- name: deletions
-- By arm: chats with a prompt that differs that were deleted before the end, and how many users did so.
SELECT arm, count(*) AS chats, count(DISTINCT mark) AS users
FROM appliance.experiment_deletions
WHERE experiment = $1::text AND at < (SELECT ends FROM appliance.experiment_span($1::text))
GROUP BY arm;
