-- name: create_experiment
-- $1 experiment, $2 character, $3 hypothesis, $4 layer, $5 salt, $6 range start, $7 range end, $8 coverage,
-- $9 excludes, $10 overrides, $11 options; $12 arms, $13 shares, $14 versions; $15 author, $16 message. One statement:
-- an experiment is never seen without its arms. False where the name is taken.
WITH made AS (
    INSERT INTO appliance.experiments (
        experiment, character_id, hypothesis, layer, salt, range_start, range_end, coverage, excludes, overrides,
        options, state)
    VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::float8, $7::float8, $8::float8,
            $9::text[], $10::jsonb, $11::jsonb, 'draft')
    ON CONFLICT (experiment) DO NOTHING
    RETURNING experiment, character_id
), arms AS (
    INSERT INTO appliance.experiment_arms (experiment, arm, place, share, name, version)
    SELECT made.experiment, given.arm, given.place, given.share, made.character_id, given.version
    FROM made
    CROSS JOIN unnest($12::text[], $13::float8[], $14::text[])
        WITH ORDINALITY AS given (arm, share, version, place)
), event AS (
    INSERT INTO appliance.experiment_events (experiment, kind, author, message)
    SELECT experiment, 'created', $15::text, $16::text FROM made
)
SELECT count(*) > 0 AS is_new FROM made;

-- name: experiments
-- $1: only those that run, and those that have begun and that one of them excludes; false: all of them. The newest
-- first; one row an arm.
SELECT e.experiment, e.character_id, e.hypothesis, e.layer, e.salt, e.range_start, e.range_end, e.coverage,
       e.excludes, e.overrides, e.options, e.state, e.created_at, e.started_at, e.stopped_at,
       a.arm, a.share, a.version, a.paused_at
FROM appliance.experiments AS e
JOIN appliance.experiment_arms AS a ON a.experiment = e.experiment
WHERE NOT $1::boolean OR e.state = 'running'
   OR e.started_at IS NOT NULL AND e.experiment IN (
       SELECT unnest(r.excludes) FROM appliance.experiments AS r WHERE r.state = 'running')
ORDER BY e.created_at DESC, e.experiment, a.place;

-- name: experiment_events
SELECT experiment, kind, arm, author, message, report IS NOT NULL AS has_report, at
FROM appliance.experiment_events
WHERE experiment = $1::text
ORDER BY event_id;

-- name: was_done
-- Whether somebody ($4) has done a deed ($2, with arm $3 or null) for this reason ($5) a moment ago: what a try whose
-- answer was lost has left.
SELECT EXISTS (
    SELECT FROM appliance.experiment_events
    WHERE experiment = $1::text AND kind = $2::text AND arm IS NOT DISTINCT FROM $3::text
      AND author = $4::text AND message = $5::text AND at > now() - interval '1 minute'
);

-- name: experiment_report
-- The report that the experiment was last stopped or shipped with.
SELECT report
FROM appliance.experiment_events
WHERE experiment = $1::text AND report IS NOT NULL
ORDER BY event_id DESC
LIMIT 1;

-- name: shipped_arms
-- Which of a character's versions experiments made `production`, the newest first.
SELECT v.experiment, v.arm, a.version, v.at
FROM appliance.experiment_events AS v
JOIN appliance.experiment_arms AS a ON a.experiment = v.experiment AND a.arm = v.arm
WHERE v.kind = 'shipped' AND a.name = $1::text
ORDER BY v.event_id DESC;

-- name: start_experiment
-- $2 coverage or null: as it was drafted; $3 author, $4 message. Only one at a time starts: what overlaps it was
-- looked for under the same lock.
WITH changed AS (
    UPDATE appliance.experiments
    SET state = 'running', started_at = now(), coverage = coalesce($2::float8, coverage)
    WHERE experiment = $1::text AND state = 'draft'
    RETURNING experiment
)
INSERT INTO appliance.experiment_events (experiment, kind, author, message)
SELECT experiment, 'started', $3::text, $4::text FROM changed
RETURNING at;

-- name: lock_experiments
SELECT pg_advisory_xact_lock(7235419003813::bigint);

-- name: ramp_experiment
-- A ramp only adds users.
WITH changed AS (
    UPDATE appliance.experiments
    SET coverage = $2::float8
    WHERE experiment = $1::text AND state = 'running' AND coverage < $2::float8
    RETURNING experiment
)
INSERT INTO appliance.experiment_events (experiment, kind, author, message)
SELECT experiment, 'ramped', $3::text, $4::text FROM changed
RETURNING at;

-- name: pause_arm
WITH changed AS (
    UPDATE appliance.experiment_arms AS a
    SET paused_at = now()
    FROM appliance.experiments AS e
    WHERE a.experiment = $1::text AND a.arm = $2::text AND a.paused_at IS NULL
      AND e.experiment = a.experiment AND e.state = 'running'
    RETURNING a.experiment, a.arm
)
INSERT INTO appliance.experiment_events (experiment, kind, arm, author, message)
SELECT experiment, 'paused', arm, $3::text, $4::text FROM changed
RETURNING at;

-- name: end_experiment
-- $2 how it ends, $3 the arm that was shipped or null, $4 author, $5 message, $6 report or null.
WITH changed AS (
    UPDATE appliance.experiments
    SET state = $2::text, stopped_at = coalesce(stopped_at, now())
    WHERE experiment = $1::text
      AND state = ANY (CASE $2::text WHEN 'withdrawn' THEN ARRAY['draft']
                                     WHEN 'shipped' THEN ARRAY['running', 'stopped']
                                     ELSE ARRAY['running'] END)
    RETURNING experiment
)
INSERT INTO appliance.experiment_events (experiment, kind, arm, author, message, report)
SELECT experiment, $2::text, $3::text, $4::text, $5::text, $6::jsonb FROM changed
RETURNING at;

-- name: add_deletion
-- A chat of user $4 of tenant $3 that was deleted, after a prompt that differs.
INSERT INTO appliance.experiment_deletions (experiment, arm, mark)
SELECT $1::text, $2::text,
       hashtextextended($3::text || '/' || coalesce($4::text, ''), hashtext($1::text)) & 65535
WHERE NOT appliance.is_tester(appliance.experiment_testers($1::text), $3::text, $4::text);

-- name: add_failure
-- $1 tenant, $2 conversation, $3 whether the prompt differs from what another arm would have made (null: there was
-- none; then by what the arms differ in), $4 how many failures are kept. Nothing of a chat without an experiment that
-- runs, or that was given another version than its arm's.
UPDATE appliance.conversations AS c
SET failed_at = (array_prepend(now(), c.failed_at))[1:$4::integer],
    exposed_at = CASE WHEN coalesce($3::boolean, NOT (
                          coalesce((e.options ->> 'differs_when_cut')::boolean, false)
                          OR coalesce((e.options ->> 'differs_when_recalled')::boolean, false)))
                      THEN coalesce(c.exposed_at, now())
                      ELSE c.exposed_at END
FROM appliance.experiments AS e, appliance.experiment_arms AS a
WHERE c.tenant = $1::text AND c.conversation_id = $2::uuid
  AND e.experiment = c.experiment AND e.state = 'running'
  AND a.experiment = c.experiment AND a.arm = c.arm AND a.version = c.prompt_version;

-- name: apart
-- Whom no report counts.
SELECT crossed, testers FROM appliance.experiment_apart($1::text);

-- name: exposed_conversations
-- Conversations by arm, how many of them were exposed, and the users who count: all tenants', so all partitions.
SELECT c.arm, count(*) AS conversations, count(c.exposed_at) AS exposed,
       (SELECT count(*) FROM appliance.experiment_users($1::text) AS u WHERE u.arm = c.arm) AS users,
       (SELECT count(*) FROM appliance.experiment_deletions AS d
        WHERE d.experiment = $1::text AND d.arm = c.arm) AS deleted
FROM appliance.conversations AS c
WHERE c.experiment = $1::text
  AND NOT appliance.is_tester((SELECT appliance.experiment_testers($1::text)), c.tenant, c.user_id)
GROUP BY c.arm
ORDER BY c.arm;
