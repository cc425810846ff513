-- Observations of the time to the first token: by person, in steps of 1 %.
SELECT person, appliance.time_step(ttft_ms) AS step, count(*) AS count
FROM appliance.experiment_messages($1::text)
WHERE is_after AND is_here AND ttft_ms IS NOT NULL
GROUP BY person, step
