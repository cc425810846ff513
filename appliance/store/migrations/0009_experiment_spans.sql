-- usable-from: 8
-- What a report counts ends where its comparison does. Before, control went on to recruit after the other arm was
-- paused, and a look that was planned for a day saw all days after it.

-- From when a user's past is looked at, when the experiment began, and what nothing that comes later counts for:
-- its stop; the planned end where it is judged once, so that a look on a later day says the same; or the pause
-- after which no two arms are left to compare. A draft is as if it had begun as many days ago as it is to last:
-- what it is planned from.
CREATE FUNCTION appliance.experiment_span(experiment text)
RETURNS TABLE (since timestamptz, begins timestamptz, ends timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT s.begins - (s.options ->> 'before_days')::integer * interval '1 day', s.begins,
           least(now(), s.stopped_at, CASE WHEN s.options ->> 'looks' = 'planned' THEN s.begins + s.lasts END,
                 (SELECT least(max(a.paused_at) FILTER (WHERE a.place = 1),
                               CASE WHEN bool_and(a.paused_at IS NOT NULL) FILTER (WHERE a.place > 1)
                                    THEN max(a.paused_at) FILTER (WHERE a.place > 1) END)
                  FROM appliance.experiment_arms AS a
                  WHERE a.experiment = $1))
    FROM (
        SELECT e.options, e.stopped_at, d.lasts, coalesce(e.started_at, now() - d.lasts) AS begins
        FROM appliance.experiments AS e
        CROSS JOIN LATERAL (SELECT (e.options ->> 'days')::integer * interval '24 hours' AS lasts) AS d
        WHERE e.experiment = $1
    ) AS s
$$;

-- Whether a user has a fixed arm: `tenant/user`, or the tenant where its application tells no users.
CREATE FUNCTION appliance.is_tester(overrides jsonb, tenant text, user_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT overrides ? CASE WHEN coalesce(user_id, '') = '' THEN tenant ELSE tenant || '/' || user_id END
$$;

-- Times in steps of 1 % of a time and a millisecond, so that there are few for each user.
CREATE FUNCTION appliance.time_step(ms integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT round(100 * ln(ms + 1.0::float8))::integer
$$;

-- As before, of those who were exposed before the end; of a draft: those who opened a chat with its character.
CREATE OR REPLACE FUNCTION appliance.experiment_people(experiment text)
RETURNS TABLE (person integer, tenant text, user_id text, arm integer, version text, exposed_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (row_number() OVER (ORDER BY u.tenant, u.user_id) - 1)::integer, u.tenant, u.user_id,
           coalesce(a.place, 1) - 1, a.version, u.exposed_at
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
    WHERE NOT appliance.is_tester(e.overrides, u.tenant, u.user_id)
$$;

-- As before, within the span.
CREATE OR REPLACE FUNCTION appliance.experiment_messages(experiment text)
RETURNS TABLE (
    person integer, arm integer, conversation_id uuid, role text, created_at timestamptz,
    is_before boolean, is_after boolean, is_here boolean, is_warm boolean,
    since_exposure_s double precision, finish_reason text, prompt_tokens integer, prefix_hit_tokens integer,
    new_tokens integer, ttft_ms integer, reply_ms integer, is_edit boolean, is_cut boolean)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT p.person, p.arm, m.conversation_id, m.role, m.created_at,
           m.created_at < s.begins,
           m.created_at >= p.exposed_at,
           CASE WHEN e.started_at IS NULL OR m.created_at < s.begins THEN c.character_id = e.character_id
                ELSE c.experiment IS NOT DISTINCT FROM $1
                     AND coalesce(m.prompt_version = p.version, true) END,
           m.created_at >= s.begins + (e.options ->> 'warm_up_minutes')::integer * interval '1 minute',
           date_part('epoch', m.created_at - p.exposed_at),
           m.finish_reason, m.prompt_tokens, m.prefix_hit_tokens,
           coalesce(octet_length(m.token_ids) / 4, 0), m.ttft_ms, m.reply_ms,
           coalesce(m.is_edit, false), m.anchor_id IS NOT NULL
    FROM appliance.experiments AS e
    JOIN appliance.experiment_span($1) AS s ON true
    JOIN appliance.experiment_people($1) AS p ON true
    JOIN appliance.conversations AS c ON c.tenant = p.tenant AND coalesce(c.user_id, '') = p.user_id
    JOIN appliance.messages AS m ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id
    WHERE e.experiment = $1 AND m.created_at >= s.since AND m.created_at < s.ends
$$;
