-- Observations of the time of a full message: by person, in steps of 1 %.
SELECT person, appliance.time_step(reply_ms) AS step, count(*) AS count
FROM appliance.experiment_messages($1::text)
WHERE is_after AND is_here AND reply_ms IS NOT NULL AND finish_reason IN ('stop', 'length')
GROUP BY person, step
