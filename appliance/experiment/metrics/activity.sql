-- By person: minutes with a message or its reply (a greeting is neither), and whether they came back. A day counts
-- from the exposure on, and only of users for whom it is over. Within a minute the first and the last message say
-- which days it touches.
SELECT p.person,
       coalesce(a.minutes, 0)::float8 AS minutes,
       coalesce(a.minutes_before, 0)::float8 AS minutes_before,
       (coalesce(a.day_1, false) AND p.days >= 2)::integer::float8 AS returned_day_1,
       (p.days >= 2)::integer::float8 AS seen_day_1,
       (coalesce(a.day_7, false) AND p.days >= 8)::integer::float8 AS returned_day_7,
       (p.days >= 8)::integer::float8 AS seen_day_7
FROM (
    SELECT person, date_part('epoch', s.ends - exposed_at) / 86400 AS days
    FROM appliance.experiment_span($1::text) AS s
    JOIN appliance.experiment_people($1::text) ON true
) AS p
LEFT JOIN (
    SELECT person,
           count(*) FILTER (WHERE NOT is_before) AS minutes,
           count(*) FILTER (WHERE is_before) AS minutes_before,
           bool_or(first_s >= 86400 AND first_s < 172800 OR last_s >= 86400 AND last_s < 172800) AS day_1,
           bool_or(first_s >= 604800 AND first_s < 691200 OR last_s >= 604800 AND last_s < 691200) AS day_7
    FROM (
        SELECT person, is_before, floor(date_part('epoch', created_at) / 60)::integer AS minute,
               min(since_exposure_s) AS first_s, max(since_exposure_s) AS last_s
        FROM appliance.experiment_messages($1::text)
        WHERE (is_before OR is_after) AND (role = 'user' OR prompt_tokens IS NOT NULL)
        GROUP BY person, is_before, minute
    ) AS active
    GROUP BY person
) AS a ON a.person = p.person
