//! The figures that the view shows.

use std::collections::VecDeque;

use serde::Serialize;

use super::gateways::Book;
use super::traffic::TENANTS;

/// The seconds that are remembered: as many as a very wide terminal has columns.
const SECONDS: usize = 400;

/// Everything on the screen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board {
    pub(crate) elapsed_s: u64,
    pub(crate) tenants: [TenantFigures; TENANTS],
    /// The newest first, which is not over yet.
    pub(crate) seconds: VecDeque<Requests>,
    /// The sum since the start.
    pub(crate) requests: Requests,
    /// The start of the windows shown, like `14:03`; empty before there are any.
    pub(crate) minute: String,
    pub(crate) hour: String,
    pub(crate) units: Units,
    /// True if tokens are leased.
    pub(crate) is_leased: bool,
}

/// The figures of one tenant.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TenantFigures {
    pub(crate) requests_left: i64,
    pub(crate) tokens_left: i64,
    /// Of the budget, in cents.
    pub(crate) cents_left: i64,
    /// In the usage windows of this minute and this hour.
    pub(crate) minute: Used,
    pub(crate) hour: Used,
}

/// The usage of one tenant in a window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) requests: i128,
    pub(crate) tokens: i128,
    /// Money, in cents.
    pub(crate) cents: i128,
}

/// Answers of the limiter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Writes that lease.
    pub(crate) writes: u64,
}

/// Write units spent.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Units {
    pub(crate) acquires: f64,
    pub(crate) adjustments: f64,
    pub(crate) metering: f64,
}

impl Board {
    /// Moves on to `elapsed_s`, with the current books and, with leases, their writes.
    pub(crate) fn tick(&mut self, elapsed_s: u64, books: &[Book; TENANTS], writes: Option<u64>) {
        self.is_leased = writes.is_some();
        while self.elapsed_s < elapsed_s || self.seconds.is_empty() {
            self.elapsed_s += u64::from(!self.seconds.is_empty());
            self.seconds.push_front(Requests::default());
        }
        self.seconds.truncate(SECONDS);
        let now = Requests {
            admitted: books.iter().map(|book| book.admitted).sum(),
            refused: books.iter().map(|book| book.refused).sum(),
            writes: writes.unwrap_or(0),
        };
        if let Some(newest) = self.seconds.front_mut() {
            newest.admitted += now.admitted - self.requests.admitted;
            newest.refused += now.refused - self.requests.refused;
            newest.writes += now.writes - self.requests.writes;
        }
        self.requests = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_in_the_second_in_which_they_are_seen() {
        let mut board = Board::default();
        let mut books = [Book::default(); TENANTS];
        let mut tick = |elapsed_s, admitted, refused| {
            books[1].admitted += admitted;
            books[2].refused += refused;
            board.tick(elapsed_s, &books, None);
            board.seconds.iter().map(|s| (s.admitted, s.refused)).collect::<Vec<_>>()
        };
        assert_eq!(tick(0, 1, 0), [(1, 0)]);
        assert_eq!(tick(0, 2, 1), [(3, 1)]);
        assert_eq!(tick(1, 4, 0), [(4, 0), (3, 1)]);
        assert_eq!(tick(3, 0, 5), [(0, 5), (0, 0), (4, 0), (3, 1)]);
        assert_eq!(board.requests, Requests { admitted: 7, refused: 6, writes: 0 });
    }
}
