-- usable-from: 6
-- Experiments: which users get which version of a character. Like versions and labels they are the operator's
-- and belong to no tenant. What they are judged by is stored with conversations and replies.

-- Who talks, where the tenant's application tells (null: the tenant itself is the user); the experiment and
-- the arm that the conversation was opened in, and when its first prompt that differs was stored. All go with
-- the conversation when it is deleted. Nullable without a default, so that no row is touched.
ALTER TABLE appliance.conversations
    ADD COLUMN user_id text CHECK (octet_length(user_id) BETWEEN 1 AND 512),
    ADD COLUMN experiment text,
    ADD COLUMN arm text,
    ADD COLUMN exposed_at timestamptz;

-- Of a reply: the time to its first text and to its end, from the request on; null where it was not measured.
-- Of a user's message: true where it does not go on from what was shown (an edit, a branch), else null.
ALTER TABLE appliance.messages
    ADD COLUMN ttft_ms integer CHECK (ttft_ms >= 0),
    ADD COLUMN reply_ms integer CHECK (reply_ms >= 0),
    ADD COLUMN is_edit boolean;

-- [range_start, range_end) is the experiment's part of its layer, of whose users `coverage` is let in. The
-- salt never changes once it has started: another would give users another arm.
CREATE TABLE appliance.experiments (
    experiment text PRIMARY KEY CHECK (experiment ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    character_id text NOT NULL,
    hypothesis text NOT NULL CHECK (char_length(hypothesis) BETWEEN 1 AND 2000),
    layer text NOT NULL CHECK (layer ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    salt text NOT NULL CHECK (octet_length(salt) BETWEEN 1 AND 200),
    range_start double precision NOT NULL CHECK (range_start >= 0),
    range_end double precision NOT NULL CHECK (range_end > range_start AND range_end <= 1),
    coverage double precision NOT NULL CHECK (coverage > 0 AND coverage <= 1),
    excludes text[] NOT NULL,
    overrides jsonb NOT NULL,
    options jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('draft', 'running', 'stopped', 'shipped')),
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    stopped_at timestamptz
);

CREATE TABLE appliance.experiment_arms (
    experiment text NOT NULL REFERENCES appliance.experiments,
    arm text NOT NULL CHECK (arm ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    place integer NOT NULL,
    share double precision NOT NULL CHECK (share > 0 AND share <= 1),
    name text NOT NULL,
    version text NOT NULL,
    paused_at timestamptz,
    PRIMARY KEY (experiment, arm),
    FOREIGN KEY (name, version) REFERENCES appliance.prompt_versions
);

-- What happened to an experiment, and the report it was shipped or stopped with.
CREATE TABLE appliance.experiment_events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    experiment text NOT NULL REFERENCES appliance.experiments,
    kind text NOT NULL
        CHECK (kind IN ('created', 'started', 'ramped', 'paused', 'stopped', 'shipped')),
    arm text,
    author text NOT NULL CHECK (char_length(author) BETWEEN 1 AND 200),
    message text NOT NULL CHECK (char_length(message) BETWEEN 1 AND 2000),
    report jsonb,
    at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX experiment_events_of ON appliance.experiment_events (experiment, event_id);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON appliance.experiment_events
    FOR EACH STATEMENT EXECUTE FUNCTION appliance.refuse_change();

CREATE FUNCTION appliance.refuse_another_salt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.started_at IS NOT NULL AND (NEW.salt, NEW.layer, NEW.range_start)
        IS DISTINCT FROM (OLD.salt, OLD.layer, OLD.range_start) THEN
        RAISE EXCEPTION 'the salt and the place of an experiment that has started are never changed'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER same_salt BEFORE UPDATE ON appliance.experiments
    FOR EACH ROW EXECUTE FUNCTION appliance.refuse_another_salt();

-- Who counts in a report, numbered from 0 on: users with a prompt that differs, of one arm alone, and not put
-- there by an override. `arm` is the place of the arm, from 0 on.
CREATE FUNCTION appliance.experiment_people(experiment text)
RETURNS TABLE (person integer, tenant text, user_id text, arm integer, version text, exposed_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (row_number() OVER (ORDER BY u.tenant, u.user_id) - 1)::integer, u.tenant, u.user_id,
           a.place - 1, a.version, u.exposed_at
    FROM (
        SELECT c.tenant, coalesce(c.user_id, '') AS user_id, min(c.arm) AS arm,
               min(c.exposed_at) AS exposed_at
        FROM appliance.conversations AS c
        WHERE c.experiment = $1 AND c.exposed_at IS NOT NULL
        GROUP BY c.tenant, coalesce(c.user_id, '')
        HAVING min(c.arm) = max(c.arm)
    ) AS u
    JOIN appliance.experiment_arms AS a ON a.experiment = $1 AND a.arm = u.arm
    JOIN appliance.experiments AS e ON e.experiment = $1
    WHERE NOT e.overrides ? coalesce(nullif(u.user_id, ''), u.tenant)
$$;

-- Every message of these people that a report looks at: what came before the experiment began (`is_before`,
-- as many days as it says) and from their exposure on (`is_after`); between the two, neither. `is_here`: of a
-- conversation of this experiment, a reply of its arm's version; before: of its character. `is_warm`: after
-- the minutes in which the cache has nothing of a new version yet.
CREATE FUNCTION appliance.experiment_messages(experiment text)
RETURNS TABLE (
    person integer, arm integer, conversation_id uuid, role text, created_at timestamptz,
    is_before boolean, is_after boolean, is_here boolean, is_warm boolean,
    since_exposure_s double precision, finish_reason text, prompt_tokens integer, prefix_hit_tokens integer,
    new_tokens integer, ttft_ms integer, reply_ms integer, is_edit boolean, is_cut boolean)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT p.person, p.arm, m.conversation_id, m.role, m.created_at,
           m.created_at < e.started_at,
           m.created_at >= p.exposed_at,
           CASE WHEN m.created_at < e.started_at THEN c.character_id = e.character_id
                ELSE c.experiment IS NOT DISTINCT FROM $1
                     AND coalesce(m.prompt_version = p.version, true) END,
           m.created_at >= e.started_at
               + (e.options ->> 'warm_up_minutes')::integer * interval '1 minute',
           date_part('epoch', m.created_at - p.exposed_at),
           m.finish_reason, m.prompt_tokens, m.prefix_hit_tokens,
           coalesce(octet_length(m.token_ids) / 4, 0), m.ttft_ms, m.reply_ms,
           coalesce(m.is_edit, false), m.anchor_id IS NOT NULL
    FROM appliance.experiments AS e
    JOIN appliance.experiment_people($1) AS p ON true
    JOIN appliance.conversations AS c ON c.tenant = p.tenant AND coalesce(c.user_id, '') = p.user_id
    JOIN appliance.messages AS m ON m.tenant = c.tenant AND m.conversation_id = c.conversation_id
    WHERE e.experiment = $1
      AND m.created_at >= e.started_at - (e.options ->> 'before_days')::integer * interval '1 day'
      AND m.created_at < coalesce(e.stopped_at, 'infinity')
$$;
