//! `counterfoil resync`: a person's word that what a receiver's database has may go.

use std::process::ExitCode;

use counterfoil::proto::pb::ResyncRequest;

use crate::{arguments, failure::Failure, link, output::say};

/// Orders it; prints where to look.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL, [`Failure::Runtime`] where it is refused.
pub async fn run(arguments: arguments::Resync) -> Result<ExitCode, Failure> {
    let url = &arguments.target.receiver;
    let mut receiver = link::receiver_admin(url)?;
    let request = link::call(ResyncRequest { confirm: arguments.confirm });
    receiver.resync(request).await.map_err(|status| Failure::call(url, &status))?;
    say("under way; `counterfoil status` shows how it goes");
    Ok(ExitCode::SUCCESS)
}
