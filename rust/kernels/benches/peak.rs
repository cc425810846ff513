//! What a core multiplies at most: products in registers alone, as one line of JSON.
//!
//! `cargo bench -p appliance-kernels --bench peak`; `bench/decode.py` reads it. Products a second of one
//! thread, of float32 and of 16-bit integers summed to 32 bits, with the best instructions that the
//! kernels have here. 0 on other CPUs than x86-64.

use std::time::{Duration, Instant};

/// How long each is measured.
const TIME: Duration = Duration::from_millis(300);

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![allow(clippy::wildcard_imports, reason = "the names say where they are from")]

    use std::arch::x86_64::*;
    use std::hint::black_box;

    const ROUNDS: usize = 10_000;

    /// Independent sums: more than a multiplication takes cycles, times those begun in one.
    const SUMS: usize = 12;

    macro_rules! peak {
        ($name:ident, $features:literal, $start:expr, $per:literal, |$sum:ident, $x:ident| $next:expr) => {
            #[target_feature(enable = $features)]
            fn $name() -> usize {
                let $x = black_box($start);
                let mut sums = [$x; SUMS];
                for _ in 0..ROUNDS {
                    for sum in &mut sums {
                        let $sum = *sum;
                        *sum = $next;
                    }
                }
                black_box(sums);
                ROUNDS * SUMS * $per
            }
        };
    }

    // Each product takes the sum before it, so that none can be computed once and for all.
    peak!(floats_256, "avx2,fma", _mm256_set1_ps(0.5), 8, |sum, x| {
        _mm256_fmadd_ps(sum, x, x)
    });
    peak!(floats_512, "avx512f", _mm512_set1_ps(0.5), 16, |sum, x| {
        _mm512_fmadd_ps(sum, x, x)
    });
    peak!(integers_256, "avx2", _mm256_set1_epi16(1), 16, |sum, x| {
        _mm256_add_epi32(_mm256_madd_epi16(sum, x), x)
    });
    peak!(
        integers_512,
        "avx512f,avx512bw",
        _mm512_set1_epi16(1),
        32,
        |sum, x| _mm512_add_epi32(_mm512_madd_epi16(sum, x), x)
    );
    peak!(
        integers_vnni,
        "avx512f,avx512bw,avx512vnni",
        _mm512_set1_epi16(1),
        32,
        |sum, x| _mm512_dpwssd_epi32(x, sum, x)
    );

    pub fn floats() -> usize {
        // SAFETY: the CPU was asked.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                floats_512()
            } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                floats_256()
            } else {
                0
            }
        }
    }

    pub fn integers() -> usize {
        // SAFETY: the CPU was asked.
        unsafe {
            if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw") {
                integers_vnni()
            } else if is_x86_feature_detected!("avx512bw") {
                integers_512()
            } else if is_x86_feature_detected!("avx2") {
                integers_256()
            } else {
                0
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    pub fn floats() -> usize {
        0
    }

    pub fn integers() -> usize {
        0
    }
}

/// The best rate of many short runs, so that other processes count little.
fn best(products: fn() -> usize) -> f64 {
    let (begin, mut best) = (Instant::now(), 0.0_f64);
    while begin.elapsed() < TIME {
        let start = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let count = products() as f64;
        best = best.max(count / start.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let (floats, integers) = (best(x86::floats), best(x86::integers));
    println!(r#"{{"float32_per_second": {floats:e}, "int16_per_second": {integers:e}}}"#);
}
