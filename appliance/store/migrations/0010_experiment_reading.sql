-- usable-from: 9
-- A report over millions of messages in half the time and less: what is the same for all of them is found once, and
-- who counts is numbered by a function of its own, so that processes share the rest.

-- From when on a user's past is looked at, when the experiment began, and what nothing that comes later counts for:
-- now, its stop, or the time that a report is of (setting `appliance.looked_at`; of arms that are paused, and of a
-- look that was planned). A draft is as if it had begun as many days ago as it is to last: what it is planned from.
CREATE OR REPLACE FUNCTION appliance.experiment_span(experiment text)
RETURNS TABLE (since timestamptz, begins timestamptz, ends timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1 AS $$
    SELECT s.begins - (s.options ->> 'before_days')::integer * interval '1 day', s.begins,
           least(now(), s.stopped_at, nullif(current_setting('appliance.looked_at', true), '')::timestamptz)
    FROM (
        SELECT e.options, e.stopped_at,
               coalesce(e.started_at, now() - (e.options ->> 'days')::integer * interval '24 hours') AS begins
        FROM appliance.experiments AS e
        WHERE e.experiment = $1
    ) AS s
$$;

-- Who counts in a report, numbered from 0 on: users with a prompt that differs before its end, of one arm alone, and
-- not put there by an override; of a draft those who opened a chat with its character. `arm` is the place of the
-- arm, from 0 on. From `warm_at` on the cache may have something of the arm's version: some minutes after somebody
-- first had it. Not in SQL alone: a window function in the midst of a query keeps all of it to one process.
CREATE FUNCTION appliance.experiment_exposures(experiment text)
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
        SELECT c.tenant, coalesce(c.user_id, '') AS user_id, min(c.arm) AS arm,
               min(c.exposed_at) AS exposed_at
        FROM appliance.conversations AS c
        WHERE c.experiment = $1 AND c.exposed_at < (SELECT ends FROM appliance.experiment_span($1))
        GROUP BY c.tenant, coalesce(c.user_id, '')
        HAVING min(c.arm) = max(c.arm)
        UNION ALL
        SELECT c.tenant, coalesce(c.user_id, ''), NULL, min(c.created_at)
        FROM appliance.experiments AS e
        JOIN appliance.conversations AS c ON c.character_id = e.character_id
        WHERE e.experiment = $1 AND e.started_at IS NULL
          AND c.created_at >= (SELECT begins FROM appliance.experiment_span($1))
        GROUP BY c.tenant, coalesce(c.user_id, '')
    ) AS u
    JOIN appliance.experiments AS e ON e.experiment = $1
    LEFT JOIN appliance.experiment_arms AS a ON a.experiment = $1 AND a.arm = u.arm
    WHERE NOT appliance.is_tester(e.overrides, u.tenant, u.user_id);
END
$$;

-- The same, as it was.
CREATE OR REPLACE FUNCTION appliance.experiment_people(experiment text)
RETURNS TABLE (person integer, tenant text, user_id text, arm integer, version text, exposed_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 100000 AS $$
    SELECT person, tenant, user_id, arm, version, exposed_at FROM appliance.experiment_exposures($1)
$$;

-- Every message of these people that a report looks at: what came before the experiment began (`is_before`, as
-- many days as it says) and from their exposure on (`is_after`); between the two, neither. `is_here`: of a
-- conversation of this experiment, a reply of its arm's version; before: of its character. `is_warm`: after the
-- minutes in which the cache has nothing of a new version yet. What is the same for all messages is found once, by
-- a query of its own; two bounds of one time would be taken for a narrow range (IS TRUE keeps them apart).
CREATE OR REPLACE FUNCTION appliance.experiment_messages(experiment text)
RETURNS TABLE (
    person integer, arm integer, conversation_id uuid, role text, created_at timestamptz,
    is_before boolean, is_after boolean, is_here boolean, is_warm boolean,
    since_exposure_s double precision, finish_reason text, prompt_tokens integer, prefix_hit_tokens integer,
    new_tokens integer, ttft_ms integer, reply_ms integer, is_edit boolean, is_cut boolean)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1000000 AS $$
    SELECT p.person, p.arm, m.conversation_id, m.role, m.created_at,
           m.created_at < (SELECT begins FROM appliance.experiment_span($1)),
           m.created_at >= p.exposed_at,
           CASE WHEN p.version IS NULL OR m.created_at < (SELECT begins FROM appliance.experiment_span($1))
                THEN c.character_id IS NOT DISTINCT FROM
                     (SELECT e.character_id FROM appliance.experiments AS e WHERE e.experiment = $1)
                ELSE c.experiment IS NOT DISTINCT FROM $1
                     AND coalesce(m.prompt_version = p.version, true) END,
           m.created_at >= p.warm_at,
           date_part('epoch', m.created_at - p.exposed_at),
           m.finish_reason, m.prompt_tokens, m.prefix_hit_tokens,
           coalesce(octet_length(m.token_ids) / 4, 0), m.ttft_ms, m.reply_ms,
           coalesce(m.is_edit, false), m.anchor_id IS NOT NULL
    FROM appliance.experiment_exposures($1) AS p
    JOIN appliance.conversations AS c ON c.tenant = p.tenant AND coalesce(c.user_id, '') = p.user_id
    JOIN appliance.messages AS m ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id
    WHERE (m.created_at >= (SELECT since FROM appliance.experiment_span($1))) IS TRUE
      AND (m.created_at < (SELECT ends FROM appliance.experiment_span($1))) IS TRUE
$$;
