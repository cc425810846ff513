//! Arguments that do not fit: refused before memory is touched.

use super::{Case, SHAPE};
use crate::attention::{
    AttentionError, Cache, CacheShape, NewRows, Query, Ragged, Tensors, paged_attention, store_kv,
};

/// Addresses of nothing: a read would crash.
const FLOAT32: Cache = Cache::Float32 { k: 4, v: 4 };
const QUERY: Query = Query {
    heads: 4,
    scale: 1.0,
    window: None,
};

fn attend(cache: Cache, query: Query, ragged: Ragged<'_>) -> AttentionError {
    let tensors = Tensors {
        out: 4,
        q: 4,
        cache,
    };
    // SAFETY: nothing is read when an error comes back.
    unsafe { paged_attention(tensors, SHAPE, query, ragged) }.expect_err("does not fit")
}

#[test]
fn a_batch_that_does_not_fit_is_refused_before_memory_is_touched() {
    let good = Case::new(1, &[(2, 6), (1, 4)], 2, SHAPE);
    let refused = |change: &dyn Fn(&mut Ragged<'_>)| {
        let mut ragged = good.ragged();
        change(&mut ragged);
        attend(FLOAT32, QUERY, ragged)
    };
    let page = refused(&|r| r.page_tables = &[0, 5, 1]);
    assert_eq!(page, AttentionError::Page { page: 5, pages: 5 });
    let bad: [&dyn Fn(&mut Ragged<'_>); 9] = [
        &|r| r.page_tables = &[0, 1],
        &|r| r.page_tables = &[0, 1, 2, 3],
        &|r| r.page_starts = &[0, 1, 3],
        &|r| r.page_starts = &[0, 4, 3],
        &|r| r.page_starts = &[],
        &|r| r.query_starts = &[0, 3],
        &|r| r.query_starts = &[1, 2, 3],
        &|r| r.context_lens = &[9, 4],
        &|r| r.context_lens = &[1, 4],
    ];
    for change in bad {
        assert!(matches!(refused(change), AttentionError::Batch(_)));
    }
}

#[test]
fn a_cache_larger_than_memory_is_refused() {
    let shape = CacheShape {
        pages: usize::MAX / 16,
        ..SHAPE
    };
    let rows = NewRows {
        k: 4,
        v: 4,
        cache: FLOAT32,
    };
    // SAFETY: nothing is touched when an error comes back.
    let result = unsafe { store_kv(rows, shape, &[0]) };
    assert!(matches!(result, Err(AttentionError::Shape(_))));
    // SAFETY: as above.
    let result = unsafe { store_kv(rows, SHAPE, &[19, 20]) };
    assert_eq!(
        result,
        Err(AttentionError::Slot {
            slot: 20,
            slots: 20
        })
    );
}

#[test]
fn a_query_that_does_not_fit_is_refused() {
    let good = Case::new(1, &[(2, 6), (1, 4)], 2, SHAPE);
    let bad = [
        Query { heads: 0, ..QUERY },
        Query { heads: 3, ..QUERY },
        Query {
            scale: f32::INFINITY,
            ..QUERY
        },
        Query {
            window: Some(0),
            ..QUERY
        },
    ];
    for query in bad {
        let error = attend(FLOAT32, query, good.ragged());
        assert!(matches!(error, AttentionError::Shape(_)), "{query:?}");
    }
}

#[test]
fn addresses_where_no_tensor_can_lie_are_refused() {
    let good = Case::new(1, &[(2, 6), (1, 4)], 2, SHAPE);
    let bad = |i: usize, address: usize| {
        let at = |n: usize, fine: usize| if n == i { address } else { fine };
        Cache::Int8 {
            k: at(0, 1),
            v: at(1, 1),
            k_scales: at(2, 4),
            v_scales: at(3, 4),
        }
    };
    let names = ["k_cache", "v_cache", "k_scales", "v_scales"];
    for (i, name) in names.into_iter().enumerate() {
        let error = attend(bad(i, 0), QUERY, good.ragged());
        assert_eq!(error, AttentionError::Address(name));
        let rows = NewRows {
            k: 4,
            v: 4,
            cache: bad(i, 0),
        };
        // SAFETY: nothing is touched when an error comes back.
        let result = unsafe { store_kv(rows, SHAPE, &[0]) };
        assert_eq!(result, Err(AttentionError::Address(name)));
    }
    for (i, name) in [(2, "k_scales"), (3, "v_scales")] {
        let error = attend(bad(i, 6), QUERY, good.ragged());
        assert_eq!(error, AttentionError::Address(name));
    }
    let error = attend(Cache::Float32 { k: 6, v: 4 }, QUERY, good.ragged());
    assert_eq!(error, AttentionError::Address("k_cache"));
}
