//! The token counts of one request.

use std::ops::Add;

/// Token counts of one request. Each token is in exactly one of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Input tokens that were neither read from the cache nor written to it.
    pub input: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// Input tokens that were read from the cache.
    pub cached_input: u64,
    /// Input tokens that were written to the cache.
    pub cache_write: u64,
}

impl Usage {
    /// All input tokens, from the cache or not.
    #[must_use]
    pub const fn total_input(&self) -> u64 {
        self.input.saturating_add(self.cached_input).saturating_add(self.cache_write)
    }
}

/// Sums stop at 2^64-1.
impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cached_input: self.cached_input.saturating_add(other.cached_input),
            cache_write: self.cache_write.saturating_add(other.cache_write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_usages_are_by_field() {
        let one = Usage { input: 1, output: 2, cached_input: 3, cache_write: 4 };
        let other = Usage { input: 10, output: 20, cached_input: 30, cache_write: u64::MAX };
        let sum = Usage { input: 11, output: 22, cached_input: 33, cache_write: u64::MAX };
        assert_eq!(one + other, sum);
        assert_eq!(one.total_input(), 8);
    }
}
