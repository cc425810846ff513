-- By person: conversations begun since the exposure, with the one that exposed; and before the experiment.
SELECT p.person,
       count(*) FILTER (WHERE c.created_at >= p.exposed_at OR c.exposed_at = p.exposed_at)::float8
           AS conversations,
       count(*) FILTER (
           WHERE c.created_at < (SELECT begins FROM appliance.experiment_span($1::text))
             AND c.created_at >= (SELECT since FROM appliance.experiment_span($1::text)))::float8
           AS conversations_before
FROM appliance.experiment_people($1::text) AS p
JOIN appliance.conversations AS c ON c.tenant = p.tenant AND coalesce(c.user_id, '') = p.user_id
WHERE c.created_at < (SELECT ends FROM appliance.experiment_span($1::text))
GROUP BY p.person
