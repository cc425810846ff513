-- By person: conversations begun since the exposure, with the one that exposed; and before the experiment.
SELECT p.person,
       count(*) FILTER (WHERE c.created_at >= p.exposed_at OR c.exposed_at = p.exposed_at)::float8
           AS conversations,
       count(*) FILTER (
           WHERE c.created_at < s.begins AND c.created_at >= s.since)::float8 AS conversations_before
FROM appliance.experiment_span($1::text) AS s
JOIN appliance.experiment_people($1::text) AS p ON true
JOIN appliance.conversations AS c ON c.tenant = p.tenant AND coalesce(c.user_id, '') = p.user_id
WHERE c.created_at < s.ends
GROUP BY p.person
