//! Why a prompt misses, and who is told.

use super::*;

fn explain(index: &mut PrefixIndex, path: &[u32], stretches: &[(&[u8], usize)]) -> Explanation {
    let before = index.stats();
    let explanation = index.explain(path, stretches).unwrap();
    assert_eq!(index.stats(), before);
    index.check().unwrap();
    explanation
}

fn cause(index: &mut PrefixIndex, path: &[u32]) -> Cause {
    explain(index, path, &[(ALICE, path.len())]).cause
}

#[test]
fn a_hit_a_cold_prompt_and_an_edit_are_told_apart() {
    let mut index = index(4, 32);
    assert_eq!(cause(&mut index, &tokens(20)), Cause::Cold);
    serve(&mut index, &tokens(20));
    assert_eq!(cause(&mut index, &tokens(20)), Cause::Hit);
    assert_eq!(cause(&mut index, &tokens(40)), Cause::Cold);
    for place in [0, 3, 4, 7, 18] {
        let mut edited = tokens(20);
        edited[place] = 7;
        let found = explain(&mut index, &edited, &[(ALICE, 20)]);
        assert_eq!((found.hit_tokens, found.miss_tokens), (place, 20 - place));
        assert_eq!(found.cause, Cause::Diverged);
        let shown = found.difference.unwrap();
        let whole = tokens(20);
        assert_eq!(
            shown.before,
            whole[place.saturating_sub(CONTEXT_TOKENS)..place]
        );
        assert_eq!(shown.asked[0], 7);
        assert_eq!(shown.cached, whole[place..20.min(place + CONTEXT_TOKENS)]);
    }
}

#[test]
fn what_was_evicted_lately_is_known_by_its_page() {
    let mut index = index(4, 8);
    serve(&mut index, &tokens(32));
    serve(&mut index, &[7; 12]);
    let found = explain(&mut index, &tokens(32), &[(ALICE, 32)]);
    assert_eq!((found.hit_tokens, found.cause), (20, Cause::Evicted));
    assert_eq!(found.difference, None);
    let mut edited = tokens(32);
    edited[21] = 7;
    assert_eq!(cause(&mut index, &edited), Cause::Cold);
}

#[test]
fn a_cut_in_the_middle_is_a_truncation() {
    let mut index = index(4, 32);
    serve(&mut index, &tokens(60));
    let cut = [&tokens(60)[..12], &tokens(60)[30..]].concat();
    assert_eq!(cause(&mut index, &cut), Cause::Truncated);
}

#[test]
fn the_same_token_under_another_namespace_of_the_prompt_is_told() {
    let mut index = index(4, 32);
    serve_in(&mut index, &tokens(20), &[(PUBLIC, 10), (ALICE, 10)]);
    let moved = [(PUBLIC, 6), (ALICE, 14)];
    let found = explain(&mut index, &tokens(20), &moved);
    assert_eq!((found.hit_tokens, found.cause), (6, Cause::Namespace));
}

#[test]
fn of_other_tenants_nothing_is_told() {
    let mut index = index(4, 64);
    let ours = tokens(20);
    serve_in(&mut index, &ours, &[(PUBLIC, 6), (ALICE, 14)]);
    let mut answers = Vec::new();
    for other in [tokens(20), [&tokens(6)[..], &[9; 14]].concat()] {
        answers.push(explain(&mut index, &other, &[(PUBLIC, 6), (BOB, 14)]));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!((answers[0].hit_tokens, answers[0].cause), (6, Cause::Cold));
    assert_eq!(answers[0].difference, None);
    // After the end of its own text, what follows is not shown either.
    serve_in(
        &mut index,
        &[&ours[..], &[50; 4], &[60; 8]].concat(),
        &[(PUBLIC, 6), (BOB, 18), (ALICE, 8)],
    );
    let mut edited = [&ours[..], &[51; 9]].concat();
    edited[20] = 1;
    let found = explain(&mut index, &edited, &[(PUBLIC, 6), (BOB, 23)]);
    assert_eq!(found.difference.unwrap().cached, [50; 4]);
}
