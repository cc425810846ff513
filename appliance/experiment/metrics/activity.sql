-- By person: minutes with a turn (a greeting is none), in all their chats and in those of the experiment, from when
-- the cache was warm on (before: in those with its character); and whether they came back. A day counts from the
-- exposure on, and only of users for whom it is over. The minutes of an hour are the bits of a number, so that few
-- rows are left of many turns; of a turn only the reply is looked at, which is stored with its message.
SELECT p.person,
       coalesce(a.minutes, 0)::float8 AS minutes,
       coalesce(a.minutes_before, 0)::float8 AS minutes_before,
       coalesce(a.warm_minutes, 0)::float8 AS warm_minutes,
       coalesce(a.warm_minutes_before, 0)::float8 AS warm_minutes_before,
       (coalesce(a.day_1, false) AND p.days >= 2)::integer::float8 AS returned_day_1,
       (p.days >= 2)::integer::float8 AS seen_day_1,
       (coalesce(a.day_7, false) AND p.days >= 8)::integer::float8 AS returned_day_7,
       (p.days >= 8)::integer::float8 AS seen_day_7
FROM (
    SELECT person, date_part('epoch', (SELECT ends FROM appliance.experiment_span($1::text)) - exposed_at) / 86400
               AS days
    FROM appliance.experiment_people($1::text)
) AS p
LEFT JOIN (
    SELECT person,
           sum(bit_count(minutes::bit(60))) FILTER (WHERE NOT is_before) AS minutes,
           sum(bit_count(minutes::bit(60))) FILTER (WHERE is_before) AS minutes_before,
           sum(bit_count(warm_minutes::bit(60))) FILTER (WHERE NOT is_before) AS warm_minutes,
           sum(bit_count(warm_minutes::bit(60))) FILTER (WHERE is_before) AS warm_minutes_before,
           bool_or(day_1) AS day_1, bool_or(day_7) AS day_7
    FROM (
        SELECT person, is_before, minute / 60 AS hour,
               bit_or(1::bigint << minute % 60) AS minutes,
               bit_or(1::bigint << minute % 60) FILTER (WHERE is_here AND (is_warm OR is_before)) AS warm_minutes,
               bool_or(since_exposure_s >= 86400 AND since_exposure_s < 172800) AS day_1,
               bool_or(since_exposure_s >= 604800 AND since_exposure_s < 691200) AS day_7
        FROM (
            SELECT person, is_before, is_here, is_warm, since_exposure_s,
                   floor(date_part('epoch', created_at) / 60)::integer AS minute
            FROM appliance.experiment_messages($1::text)
            WHERE (is_before OR is_after) AND prompt_tokens IS NOT NULL
        ) AS turns
        GROUP BY person, is_before, hour
    ) AS hours
    GROUP BY person
) AS a ON a.person = p.person
