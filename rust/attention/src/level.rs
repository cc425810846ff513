//! The choice of instruction set, at run time.

/// The instructions that a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// One value at a time, for a `head_dim` that no vector divides.
    Scalar,
    /// What the compiler makes of eight values at a time (SSE2, NEON).
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
}

impl Level {
    /// The best level of this CPU for a `head_dim`.
    pub fn detect(head_dim: usize) -> Self {
        let all = [Self::Avx512, Self::Avx2, Self::Portable];
        let best = all.into_iter().find(|level| level.fits(head_dim));
        best.unwrap_or(Self::Scalar)
    }

    /// Whether this CPU has the instructions and their vectors divide `head_dim`.
    pub fn fits(self, head_dim: usize) -> bool {
        match self {
            Self::Scalar => true,
            Self::Portable => head_dim.is_multiple_of(8),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                head_dim.is_multiple_of(8)
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => head_dim.is_multiple_of(16) && is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}
