-- Observations of the time to the first token: by person, in steps of 1 %.
SELECT person, 0 AS period, round(100 * ln(ttft_ms + 1.0::float8))::integer AS step, count(*) AS count
FROM appliance.experiment_messages($1::text)
WHERE is_after AND is_here AND ttft_ms IS NOT NULL
GROUP BY person, step
