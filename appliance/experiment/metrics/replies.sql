-- By person: messages and replies, their tokens and ends. Everything that is in conversations of the experiment
-- has a past in those with its character; what a user does at all (`sent`) counts everywhere.
-- A send stores a message and its reply, a regeneration a reply alone: the difference are regenerations. A reply that
-- fails before its first token stores neither: it is no message, and it was tried.
-- Of millions of messages only the kind is looked at one by one; what counts how is decided for each kind.
SELECT person,
       coalesce(sum(n) FILTER (WHERE NOT is_before AND is_user), 0)::float8 AS sent,
       coalesce(sum(n) FILTER (WHERE is_before AND is_user), 0)::float8 AS sent_before,
       coalesce(sum(n) FILTER (WHERE here AND is_user), 0)::float8 AS answered,
       coalesce(sum(n) FILTER (WHERE past AND is_user), 0)::float8 AS answered_before,
       coalesce(sum(replied) FILTER (WHERE here), 0)::float8 AS replies,
       coalesce(sum(replied) FILTER (WHERE past), 0)::float8 AS replies_before,
       greatest(0, coalesce(sum(replied) FILTER (WHERE here), 0)
                   - coalesce(sum(n) FILTER (WHERE here AND is_user), 0))::float8 AS regenerated,
       greatest(0, coalesce(sum(replied) FILTER (WHERE past), 0)
                   - coalesce(sum(n) FILTER (WHERE past AND is_user), 0))::float8 AS regenerated_before,
       coalesce(sum(edits) FILTER (WHERE here), 0)::float8 AS edits,
       coalesce(sum(edits) FILTER (WHERE past), 0)::float8 AS edits_before,
       coalesce(sum(n) FILTER (WHERE here AND finish_reason = 'cancelled'), 0)::float8 AS stopped,
       coalesce(sum(n) FILTER (WHERE past AND finish_reason = 'cancelled'), 0)::float8 AS stopped_before,
       coalesce(sum(cut) FILTER (WHERE here), 0)::float8 AS truncated,
       coalesce(sum(cut) FILTER (WHERE past), 0)::float8 AS truncated_before,
       coalesce(sum(n) FILTER (WHERE here AND finish_reason IN ('failed', 'not begun')), 0)::float8 AS failed,
       coalesce(sum(n) FILTER (WHERE past AND finish_reason = 'failed'), 0)::float8 AS failed_before,
       coalesce(sum(CASE finish_reason WHEN 'not begun' THEN n ELSE replied END) FILTER (WHERE here), 0)::float8
           AS tried,
       coalesce(sum(replied) FILTER (WHERE past), 0)::float8 AS tried_before,
       coalesce(sum(prompt - hit + new) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_cost_tokens,
       coalesce(sum(prompt - hit + new) FILTER (WHERE past), 0)::float8 AS warm_cost_tokens_before,
       coalesce(sum(prompt) FILTER (WHERE here AND NOT is_warm), 0)::float8 AS cold_prompt_tokens,
       coalesce(sum(hit) FILTER (WHERE here AND NOT is_warm), 0)::float8 AS cold_hit_tokens,
       coalesce(sum(replied) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_replies,
       coalesce(sum(prompt) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_prompt_tokens,
       coalesce(sum(hit) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_hit_tokens,
       coalesce(sum(prompt - hit) FILTER (WHERE here AND is_warm), 0)::float8 AS warm_computed_tokens,
       coalesce(sum(replied) FILTER (WHERE past), 0)::float8 AS warm_replies_before,
       coalesce(sum(prompt) FILTER (WHERE past), 0)::float8 AS warm_prompt_tokens_before,
       coalesce(sum(hit) FILTER (WHERE past), 0)::float8 AS warm_hit_tokens_before,
       coalesce(sum(prompt - hit) FILTER (WHERE past), 0)::float8 AS warm_computed_tokens_before
FROM (
    SELECT person, is_before, is_warm, finish_reason, role = 'user' AS is_user,
           is_here AND NOT is_before AS here, is_here AND is_before AS past,
           count(*) AS n, count(prompt_tokens) AS replied, count(*) FILTER (WHERE is_edit) AS edits,
           count(prompt_tokens) FILTER (WHERE is_cut) AS cut,
           coalesce(sum(prompt_tokens), 0) AS prompt, coalesce(sum(prefix_hit_tokens), 0) AS hit,
           coalesce(sum(new_tokens) FILTER (WHERE prompt_tokens IS NOT NULL), 0) AS new
    FROM appliance.experiment_messages($1::text)
    WHERE is_before OR is_after
    GROUP BY person, is_before, is_here, is_warm, role, finish_reason
    UNION ALL
    SELECT person, false, false, 'not begun', false, true, false, count(*), 0, 0, 0, 0, 0, 0
    FROM appliance.experiment_failures($1::text)
    GROUP BY person
) AS kinds
GROUP BY person
