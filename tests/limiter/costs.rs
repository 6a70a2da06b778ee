//! What each operation costs, as the table itself reports it.
