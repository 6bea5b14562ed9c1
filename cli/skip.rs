//! `counterfoil skip` and `counterfoil apply-skipped`: a person's word on an event that a
//! receiver cannot apply.

use std::process::ExitCode;

use counterfoil::proto::pb::{ApplySkippedRequest, LedgerEntry, SkipEventRequest};

use crate::{arguments, failure::Failure, link, numbers::grouped, output::say};

/// Sets it aside; prints what the ledger says of it.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL, [`Failure::Runtime`] where it is refused.
pub async fn skip(arguments: arguments::Skip) -> Result<ExitCode, Failure> {
    let url = &arguments.target.receiver;
    let mut receiver = link::receiver_admin(url)?;
    let (sequence, reason) = (Some(arguments.sequence), arguments.reason);
    let request = link::call(SkipEventRequest { sequence, reason });
    let answer =
        receiver.skip_event(request).await.map_err(|status| Failure::call(url, &status))?;
    say(in_words(&answer.into_inner().entry.unwrap_or_default()));
    Ok(ExitCode::SUCCESS)
}

/// Applies it; prints what the ledger says of it.
///
/// # Errors
/// As [`skip`].
pub async fn apply_skipped(arguments: arguments::ApplySkipped) -> Result<ExitCode, Failure> {
    let url = &arguments.target.receiver;
    let mut receiver = link::receiver_admin(url)?;
    let request = link::call(ApplySkippedRequest { sequence: Some(arguments.sequence) });
    let answer =
        receiver.apply_skipped(request).await.map_err(|status| Failure::call(url, &status))?;
    let answer = answer.into_inner();
    let words = in_words(&answer.entry.unwrap_or_default());
    say(format!("{words}, after event {}", grouped(answer.applied_after.unwrap_or(-1))));
    Ok(ExitCode::SUCCESS)
}

fn in_words(entry: &LedgerEntry) -> String {
    let outcome = entry.outcome().as_str_name();
    let outcome = outcome.strip_prefix("OUTCOME_").unwrap_or(outcome);
    let reason = match &*entry.reason {
        "" => String::new(),
        reason => format!(" ({reason:?})"),
    };
    let sequence = grouped(entry.sequence.unwrap_or(-1));
    format!("event {sequence}, key {:?}: {outcome}{reason}", entry.key)
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::pb::Outcome;

    use super::*;

    #[test]
    fn what_the_ledger_says_is_one_line() {
        let entry = |outcome: Outcome, reason: &str| LedgerEntry {
            sequence: Some(1_500),
            key: "k".into(),
            outcome: outcome.into(),
            reason: reason.into(),
            ..Default::default()
        };
        assert_eq!(in_words(&entry(Outcome::Applied, "")), "event 1,500, key \"k\": APPLIED");
        let skipped = "event 1,500, key \"k\": SKIPPED (\"too \\u{1b}large\")";
        assert_eq!(in_words(&entry(Outcome::Skipped, "too \u{1b}large")), skipped);
    }
}
