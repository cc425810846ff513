-- By person: minutes with a message, and whether they came back. A day counts from the exposure on, and only of
-- users for whom it is over.
SELECT person,
       count(*) FILTER (WHERE is_after)::float8 AS minutes,
       count(*) FILTER (WHERE is_before)::float8 AS minutes_before,
       count(DISTINCT true) FILTER (WHERE is_after AND day = 1 AND over_days >= 2)::float8 AS returned_day_1,
       (max(over_days) >= 2)::integer::float8 AS seen_day_1,
       count(DISTINCT true) FILTER (WHERE is_after AND day = 7 AND over_days >= 8)::float8 AS returned_day_7,
       (max(over_days) >= 8)::integer::float8 AS seen_day_7
FROM (
    SELECT m.person, m.is_before, m.is_after,
           floor(extract(epoch FROM m.created_at) / 60)::bigint AS minute,
           floor(m.since_exposure_s / 86400)::integer AS day,
           min(extract(epoch FROM coalesce(e.stopped_at, now()) - m.created_at)
               + m.since_exposure_s)::float8 / 86400 AS over_days
    FROM appliance.experiments AS e
    JOIN appliance.experiment_messages($1::text) AS m ON m.is_before OR m.is_after
    WHERE e.experiment = $1::text
    GROUP BY m.person, m.is_before, m.is_after, minute, day
) AS active
GROUP BY person
