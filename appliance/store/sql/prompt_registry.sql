-- name: publish_version
-- $1 name, $2 version, $3 author, $4 message, $5 paths, $6 contents. The version's row is the gate: where
-- it is already there, no file is written. One statement, so a version is never seen without its files.
WITH published AS (
    INSERT INTO appliance.prompt_versions (name, version, author, message)
    VALUES ($1::text, $2::text, $3::text, $4::text)
    ON CONFLICT (name, version) DO NOTHING
    RETURNING name, version
), files AS (
    INSERT INTO appliance.prompt_files (name, version, path, content)
    SELECT published.name, published.version, file.path, file.content
    FROM published
    CROSS JOIN unnest($5::text[], $6::bytea[]) AS file (path, content)
)
SELECT count(*) > 0 AS is_new FROM published;

-- name: get_files
SELECT path, content
FROM appliance.prompt_files
WHERE name = $1::text AND version = $2::text
ORDER BY path;

-- name: versions
SELECT name, version, author, message, created_at
FROM appliance.prompt_versions
WHERE name = $1::text
ORDER BY created_at DESC, version
LIMIT $2::integer;

-- name: versions_beginning_with
SELECT version
FROM appliance.prompt_versions
WHERE name = $1::text AND starts_with(version, $2::text)
ORDER BY version
LIMIT 3;

-- name: get_label
SELECT name, label, version, protected
FROM appliance.prompt_labels
WHERE name = $1::text AND label = $2::text;

-- name: labels
SELECT name, label, version, protected
FROM appliance.prompt_labels
WHERE name = $1::text
ORDER BY label;

-- name: names
SELECT DISTINCT name FROM appliance.prompt_versions ORDER BY name;

-- name: labelled
-- Where one label stands, for every name that has it: one moment's view.
SELECT name, label, version, protected
FROM appliance.prompt_labels
WHERE label = $1::text
ORDER BY name;

-- name: move_label
-- $1 name, $2 label, $3 to, $4 from or null where the label is to be made, $5 protected or null to leave
-- it, $6 author, $7 message, $8 whether a protected label may move. Nothing happens when the label is not
-- where the caller saw it.
WITH changed AS (
    UPDATE appliance.prompt_labels
    SET version = $3::text, protected = coalesce($5::boolean, protected)
    WHERE name = $1::text AND label = $2::text AND version = $4::text
      AND ($8::boolean OR NOT protected)
    RETURNING name, label, version, protected
), made AS (
    INSERT INTO appliance.prompt_labels (name, label, version, protected)
    SELECT $1::text, $2::text, $3::text, coalesce($5::boolean, false)
    WHERE $4::text IS NULL
    ON CONFLICT (name, label) DO NOTHING
    RETURNING name, label, version, protected
), now_at AS (
    SELECT name, label, version, protected FROM changed
    UNION ALL
    SELECT name, label, version, protected FROM made
)
INSERT INTO appliance.prompt_moves (name, label, from_version, to_version, protected, author, message)
SELECT name, label, $4::text, version, protected, $6::text, $7::text FROM now_at
RETURNING name, label, from_version, to_version, protected, author, message, moved_at;

-- name: move_made
-- The move that move_label makes of the same $1 to $4, $6 and $7, where it was made a moment ago: what a try whose answer was
-- lost has left.
SELECT name, label, from_version, to_version, protected, author, message, moved_at
FROM appliance.prompt_moves
WHERE name = $1::text AND label = $2::text AND to_version = $3::text AND from_version IS NOT DISTINCT FROM $4::text
  AND author = $5::text AND message = $6::text AND moved_at > now() - interval '1 minute'
ORDER BY move_id DESC
LIMIT 1;

-- name: remove_label
-- $1 name, $2 label, $3 the version where it stands, $4 author, $5 message, $6 whether a protected label may go.
-- The history tells it as a move that leads nowhere else.
WITH removed AS (
    DELETE FROM appliance.prompt_labels
    WHERE name = $1::text AND label = $2::text AND version = $3::text
      AND ($6::boolean OR NOT protected)
    RETURNING name, label, version, protected
)
INSERT INTO appliance.prompt_moves (name, label, from_version, to_version, protected, author, message)
SELECT name, label, version, version, protected, $4::text, $5::text FROM removed
RETURNING move_id;

-- name: moves
SELECT name, label, from_version, to_version, protected, author, message, moved_at
FROM appliance.prompt_moves
WHERE name = $1::text
ORDER BY move_id DESC
LIMIT $2::integer;
