-- usable-from: 10
-- What a report did not see: replies that failed before anything was stored of them, and chats that were deleted. And
-- who counts in an experiment is said in one place, for reports and for `status`.

-- When replies in a chat of an experiment failed before their first token, of which no message is left: the latest
-- ones, with the version of the chat's arm. Nullable without a default, so that no row is touched.
ALTER TABLE appliance.conversations ADD COLUMN failed_at timestamptz[];

-- Chats that were deleted after a prompt that differs: of which experiment and arm, and no word of whose they were.
-- `mark` tells two deletions of one user from those of two, nearly always; one of 65,536 users has the same.
CREATE TABLE appliance.experiment_deletions (
    experiment text NOT NULL,
    arm text NOT NULL,
    mark integer NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX experiment_deletions_of ON appliance.experiment_deletions (experiment, at);

ALTER TABLE appliance.experiments DROP CONSTRAINT experiments_state_check;
ALTER TABLE appliance.experiments ADD CONSTRAINT experiments_state_check
    CHECK (state IN ('draft', 'running', 'stopped', 'shipped', 'withdrawn'));
ALTER TABLE appliance.experiment_events DROP CONSTRAINT experiment_events_kind_check;
ALTER TABLE appliance.experiment_events ADD CONSTRAINT experiment_events_kind_check
    CHECK (kind IN ('created', 'started', 'ramped', 'paused', 'stopped', 'shipped', 'withdrawn'));

-- Who is tried out on and never judged by: the testers of an experiment, and of those whose users stay out of it.
CREATE FUNCTION appliance.experiment_testers(experiment text) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(jsonb_object_agg(t.key, t.value), '{}')
    FROM appliance.experiments AS e
    JOIN appliance.experiments AS o ON o.experiment = e.experiment OR o.experiment = ANY (e.excludes)
    CROSS JOIN LATERAL jsonb_each(o.overrides) AS t
    WHERE e.experiment = $1
$$;

-- The rule: a user is in an experiment from the first prompt that differs on, before its end; `arm` is null of one who
-- had such a prompt in two arms, whom no report counts. Without testers.
CREATE FUNCTION appliance.experiment_users(experiment text)
RETURNS TABLE (tenant text, user_id text, arm text, exposed_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 100000 AS $$
    SELECT c.tenant, coalesce(c.user_id, ''), CASE WHEN min(c.arm) = max(c.arm) THEN min(c.arm) END,
           min(c.exposed_at)
    FROM appliance.conversations AS c
    WHERE c.experiment = $1 AND c.exposed_at < (SELECT ends FROM appliance.experiment_span($1))
      AND NOT appliance.is_tester((SELECT appliance.experiment_testers($1)), c.tenant, c.user_id)
    GROUP BY c.tenant, coalesce(c.user_id, '')
$$;

-- As before, by that rule.
CREATE OR REPLACE FUNCTION appliance.experiment_exposures(experiment text)
RETURNS TABLE (
    person integer, tenant text, user_id text, arm integer, version text, exposed_at timestamptz,
    warm_at timestamptz)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 100000 AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT (row_number() OVER (ORDER BY u.tenant, u.user_id) - 1)::integer, u.tenant, u.user_id,
           coalesce(a.place, 1) - 1, a.version, u.exposed_at,
           min(u.exposed_at) OVER (PARTITION BY u.arm)
               + (e.options ->> 'warm_up_minutes')::integer * interval '1 minute'
    FROM (
        SELECT tenant, user_id, arm, exposed_at
        FROM appliance.experiment_users($1)
        WHERE arm IS NOT NULL
        UNION ALL
        SELECT c.tenant, coalesce(c.user_id, ''), NULL, min(c.created_at)
        FROM appliance.experiments AS e
        JOIN appliance.conversations AS c ON c.character_id = e.character_id
        WHERE e.experiment = $1 AND e.started_at IS NULL
          AND c.created_at >= (SELECT begins FROM appliance.experiment_span($1))
          AND NOT appliance.is_tester((SELECT appliance.experiment_testers($1)), c.tenant, c.user_id)
        GROUP BY c.tenant, coalesce(c.user_id, '')
    ) AS u
    JOIN appliance.experiments AS e ON e.experiment = $1
    LEFT JOIN appliance.experiment_arms AS a ON a.experiment = $1 AND a.arm = u.arm;
END
$$;

-- Who is left out of a report: users in two arms, testers, and of either kind no chat; and what is left of chats.
CREATE FUNCTION appliance.experiment_apart(experiment text)
RETURNS TABLE (crossed bigint, testers bigint, conversations bigint, exposed bigint)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1 AS $$
    SELECT (SELECT count(*) FROM appliance.experiment_users($1) AS u WHERE u.arm IS NULL),
           count(DISTINCT (c.tenant, c.user_id)) FILTER (WHERE c.is_tester),
           count(*) FILTER (WHERE NOT c.is_tester),
           count(c.exposed_at) FILTER (WHERE NOT c.is_tester)
    FROM (
        SELECT tenant, user_id, exposed_at,
               appliance.is_tester((SELECT appliance.experiment_testers($1)), tenant, user_id) AS is_tester
        FROM appliance.conversations
        WHERE experiment = $1
    ) AS c
$$;

-- Replies of these people that failed before their first token, in chats of the experiment, from their exposure on.
CREATE FUNCTION appliance.experiment_failures(experiment text)
RETURNS TABLE (person integer, failed_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1000 AS $$
    SELECT p.person, f.at
    FROM appliance.conversations AS c
    JOIN appliance.experiment_exposures($1) AS p ON p.tenant = c.tenant AND p.user_id = coalesce(c.user_id, '')
    CROSS JOIN LATERAL unnest(c.failed_at) AS f (at)
    WHERE c.experiment = $1 AND c.failed_at IS NOT NULL AND f.at >= p.exposed_at
      AND f.at < (SELECT ends FROM appliance.experiment_span($1))
$$;
