-- Observations of the time of a full message: by person, in steps of 1 %.
SELECT person, 0 AS period, round(100 * ln(reply_ms + 1.0::float8))::integer AS step, count(*) AS count
FROM appliance.experiment_messages($1::text)
WHERE is_after AND is_here AND reply_ms IS NOT NULL AND finish_reason IN ('stop', 'length')
GROUP BY person, step
