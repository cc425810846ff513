-- By person: conversations begun since the exposure, with the one that exposed; and before the experiment.
SELECT p.person,
       count(*) FILTER (WHERE c.created_at >= p.exposed_at OR c.exposed_at = p.exposed_at)::float8
           AS conversations,
       count(*) FILTER (
           WHERE c.created_at < e.started_at
             AND c.created_at >= e.started_at
                 - (e.options ->> 'before_days')::integer * interval '1 day')::float8
           AS conversations_before
FROM appliance.experiments AS e
JOIN appliance.experiment_people($1::text) AS p ON true
JOIN appliance.conversations AS c ON c.tenant = p.tenant AND coalesce(c.user_id, '') = p.user_id
WHERE e.experiment = $1::text AND c.created_at < coalesce(e.stopped_at, 'infinity')
GROUP BY p.person
