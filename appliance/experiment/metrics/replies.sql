-- By person: messages and replies, their tokens and ends. Everything that is in conversations of the experiment
-- has a past in those with its character; what a user does at all (`sent`) counts everywhere.
-- A send stores a message and its reply, a regeneration a reply alone: the difference are regenerations.
SELECT person,
       count(*) FILTER (WHERE is_after AND role = 'user')::float8 AS sent,
       count(*) FILTER (WHERE is_before AND role = 'user')::float8 AS sent_before,
       count(*) FILTER (WHERE here AND role = 'user')::float8 AS answered,
       count(*) FILTER (WHERE past AND role = 'user')::float8 AS answered_before,
       count(*) FILTER (WHERE here AND replied)::float8 AS replies,
       count(*) FILTER (WHERE past AND replied)::float8 AS replies_before,
       greatest(0, count(*) FILTER (WHERE here AND replied)
                   - count(*) FILTER (WHERE here AND role = 'user'))::float8 AS regenerated,
       greatest(0, count(*) FILTER (WHERE past AND replied)
                   - count(*) FILTER (WHERE past AND role = 'user'))::float8 AS regenerated_before,
       count(*) FILTER (WHERE here AND is_edit)::float8 AS edits,
       count(*) FILTER (WHERE past AND is_edit)::float8 AS edits_before,
       count(*) FILTER (WHERE here AND finish_reason = 'cancelled')::float8 AS stopped,
       count(*) FILTER (WHERE past AND finish_reason = 'cancelled')::float8 AS stopped_before,
       count(*) FILTER (WHERE here AND replied AND is_cut)::float8 AS truncated,
       count(*) FILTER (WHERE past AND replied AND is_cut)::float8 AS truncated_before,
       count(*) FILTER (WHERE here AND finish_reason = 'failed')::float8 AS failed,
       count(*) FILTER (WHERE past AND finish_reason = 'failed')::float8 AS failed_before,
       coalesce(sum(prompt_tokens - prefix_hit_tokens + new_tokens) FILTER (WHERE here), 0)::float8
           AS cost_tokens,
       coalesce(sum(prompt_tokens - prefix_hit_tokens + new_tokens) FILTER (WHERE past), 0)::float8
           AS cost_tokens_before,
       coalesce(sum(prompt_tokens) FILTER (WHERE here AND NOT is_warm), 0)::float8 AS cold_prompt_tokens,
       coalesce(sum(prefix_hit_tokens) FILTER (WHERE here AND NOT is_warm), 0)::float8 AS cold_hit_tokens,
       count(*) FILTER (WHERE here AND is_warm AND replied)::float8 AS warm_replies,
       coalesce(sum(prompt_tokens) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_prompt_tokens,
       coalesce(sum(prefix_hit_tokens) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_hit_tokens,
       coalesce(sum(prompt_tokens - prefix_hit_tokens) FILTER (WHERE here AND is_warm), 0)::float8
           AS warm_computed_tokens,
       count(*) FILTER (WHERE past AND replied)::float8 AS warm_replies_before,
       coalesce(sum(prompt_tokens) FILTER (WHERE past), 0)::float8 AS warm_prompt_tokens_before,
       coalesce(sum(prefix_hit_tokens) FILTER (WHERE past), 0)::float8 AS warm_hit_tokens_before,
       coalesce(sum(prompt_tokens - prefix_hit_tokens) FILTER (WHERE past), 0)::float8
           AS warm_computed_tokens_before
FROM (
    SELECT person, role, is_before, is_after, is_warm, is_edit, is_cut, finish_reason, prompt_tokens,
           prefix_hit_tokens, new_tokens,
           is_after AND is_here AS here, is_before AND is_here AS past,
           prompt_tokens IS NOT NULL AS replied
    FROM appliance.experiment_messages($1::text)
) AS said
GROUP BY person
