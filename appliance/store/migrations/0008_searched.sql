-- Which conversations searches have not taken in whole: `written` counts what was appended to one, `searched`
-- is that count as it was when all of its messages were last found in search_messages. Times said so before,
-- and a clock that was once ahead, or a turn that waited in the journal, had to be looked for again.
-- No older program can go on with it: its searches need the table that goes, and what it appends is not counted.
ALTER TABLE appliance.conversations
    ADD COLUMN written bigint NOT NULL DEFAULT 0,
    ADD COLUMN searched bigint NOT NULL DEFAULT -1;

CREATE INDEX conversations_unsearched
    ON appliance.conversations (tenant, conversation_id) WHERE written <> searched;

DROP TABLE appliance.search_progress;
