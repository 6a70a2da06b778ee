//! Times of which only the age matters, in half the memory.

/// A time in milliseconds modulo 2³². Ages of up to 24 days can be told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment(u32);

impl Moment {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "modulo")]
    pub(super) fn of(ms: i64) -> Self {
        Self(ms as u32)
    }

    /// The age in milliseconds; 0 for a time in the future.
    pub(super) fn age_ms(self, now_ms: i64) -> i64 {
        self.since_ms(now_ms).max(0)
    }

    /// True if it is in the future, as after a clock was set back.
    pub(super) fn is_to_come(self, now_ms: i64) -> bool {
        self.since_ms(now_ms) < 0
    }

    fn since_ms(self, now_ms: i64) -> i64 {
        Self::of(now_ms).0.wrapping_sub(self.0).cast_signed().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_across_the_end_of_what_is_counted() {
        let end = 400 << 32;
        assert_eq!(Moment::of(end - 5).age_ms(end + 7), 12);
        assert_eq!(Moment::of(end + 7).age_ms(end - 5), 0, "still to come");
        assert_eq!(Moment::of(-5).age_ms(7), 12);
    }
}
