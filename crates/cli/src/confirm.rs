//! Asking before something is destroyed.

use std::io::{BufRead, IsTerminal, Write};

use crate::error::CliError;
use crate::output::visible;

/// The option of every command that destroys something.
#[derive(clap::Args)]
pub(crate) struct Confirm {
    /// Do not ask.
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Confirm {
    /// Returns when `--yes` was given or whoever sits at the terminal says so.
    ///
    /// # Errors
    /// [`CliError::BadInput`] when nobody can be asked or the answer is no: nothing is done.
    pub(crate) fn ask(&self, what: &str) -> Result<(), CliError> {
        if self.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(CliError::BadInput(format!(
                "this would {what}; nobody can be asked here, so add --yes if it is meant"
            )));
        }
        let what = visible(what);
        let _ = write!(std::io::stderr(), "This will {what}. Type yes to go on: ");
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        match answer.trim() {
            "yes" | "y" => Ok(()),
            _ => Err(CliError::bad("nothing was done")),
        }
    }
}
