//! The choice of instruction set, at run time.

/// The instructions that a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// One value at a time, for a `head_dim` that no vector divides.
    Scalar,
    /// What the compiler makes of eight values at a time (SSE2, NEON).
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW and VNNI.
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
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => head_dim.is_multiple_of(16) && IntLevel::Vnni.fits(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// The instructions of products of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntLevel {
    /// What the compiler makes of plain Rust (SSE2, NEON).
    Portable,
    /// AVX2.
    Avx2,
    /// AVX-512 BW.
    Avx512,
    /// AVX-512 BW and VNNI.
    Vnni,
}

impl IntLevel {
    /// All, the best first.
    pub const ALL: [Self; 4] = [Self::Vnni, Self::Avx512, Self::Avx2, Self::Portable];

    /// The best level of this CPU.
    pub fn detect() -> Self {
        let best = Self::ALL.into_iter().find(|level| level.fits());
        best.unwrap_or(Self::Portable)
    }

    /// Whether this CPU has the instructions.
    pub fn fits(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => Self::Avx512.fits() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Vnni => false,
        }
    }
}
