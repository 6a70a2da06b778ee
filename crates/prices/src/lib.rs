//! Prices of LLM requests: from the usage in a response and a price list to exact amounts of money.
//!
//! * [`Usage`] are the token counts of a request. [`Usage::from_response`] reads them from a
//!   response, and [`UsageReader`] from a stream of events.
//! * [`PriceBook`] has the prices of models. It reads its own format ([`PriceBook::from_json`]) and
//!   LiteLLM's price list ([`PriceBook::from_litellm`]).
//! * [`PriceBook::cost`] is the price of a request, and [`PriceBook::amounts`] are the amounts that
//!   a limiter takes or corrects.
//!
//! All arithmetic is on integers: there is no floating point in this crate. A cost is rounded up
//! once, to a billionth of the currency's unit.

mod book;
mod error;
mod file;
mod json;
mod litellm;
mod price;
mod reader;
mod response;
mod usage;

pub use book::{PriceBook, Prices};
pub use error::{PriceError, UnknownPrice};
pub use price::Price;
pub use reader::UsageReader;
pub use response::UsageError;
pub use usage::Usage;
