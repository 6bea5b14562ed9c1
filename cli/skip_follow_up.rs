//! `counterfoil skip-follow-up`: a person's word on a follow-up event that is in the way.

use std::process::ExitCode;

use counterfoil::proto::pb::SkipFollowUpRequest;

use crate::{arguments, failure::Failure, link, numbers::grouped, output::say};

/// Gives it up.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL, [`Failure::Runtime`] where it is refused.
pub async fn run(arguments: arguments::SkipFollowUp) -> Result<ExitCode, Failure> {
    let url = &arguments.target.receiver;
    let mut receiver = link::receiver_admin(url)?;
    let arguments::SkipFollowUp { sequence, number, reason, .. } = arguments;
    let request = SkipFollowUpRequest { sequence: Some(sequence), number: Some(number), reason };
    let given_up = receiver.skip_follow_up(link::call(request)).await;
    given_up.map_err(|status| Failure::call(url, &status))?;
    let sequence = grouped(sequence);
    say(format!("follow-up {number} of event {sequence} is given up; those after it go on"));
    Ok(ExitCode::SUCCESS)
}
