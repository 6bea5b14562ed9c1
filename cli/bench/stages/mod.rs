//! What the product does, on real processes.

pub mod catch_up;
pub mod fill;
pub mod live;
pub mod paced;
pub mod publish;
pub mod replay;

use std::time::Duration;

use counterfoil::proto::pb::{
    GetLogRequest, GetStatusRequest, GetStatusResponse, Log, WaitAppliedRequest,
};

use crate::{failure::Failure, link, process::Pair};

/// Longest time for a receiver to apply what is in the log.
const PATIENCE: Duration = Duration::from_secs(300);

/// The log as its publisher shows it.
async fn log(pair: &Pair) -> Result<Log, Failure> {
    let url = pair.publisher_url();
    let asked = link::publisher(&url)?.get_log(link::call(GetLogRequest::default())).await;
    let answer = asked.map_err(|status| Failure::call(&url, &status))?.into_inner();
    answer.log.ok_or_else(|| Failure::Runtime(format!("{url}: answers without a log")))
}

/// Waits until the receiver has committed everything up to a sequence.
async fn applied(pair: &Pair, sequence: i64) -> Result<(), Failure> {
    let url = pair.receiver_url();
    let wait = link::within(WaitAppliedRequest { sequence }, PATIENCE);
    link::receiver(&url)?
        .wait_applied(wait)
        .await
        .map_err(|status| Failure::call(&url, &status))?;
    Ok(())
}

/// Waits until the receiver has committed the whole log, and says how many events
/// that are.
///
/// # Errors
/// [`Failure::Runtime`] when it does not.
pub async fn caught_up(pair: &Pair) -> Result<i64, Failure> {
    let published = log(pair).await?.next_sequence();
    if published > 0 {
        applied(pair, published - 1).await?;
    }
    Ok(published)
}

/// Waits likewise, and checks that it has applied each event of the log once since
/// its start, for which it had an empty database.
///
/// # Errors
/// [`Failure::Runtime`] where the counts differ.
pub async fn all_applied(pair: &Pair) -> Result<(), Failure> {
    let published = caught_up(pair).await?;
    let url = pair.receiver_url();
    let asked = link::receiver(&url)?.get_status(link::call(GetStatusRequest {})).await;
    let status = asked.map_err(|status| Failure::call(&url, &status))?.into_inner();
    agree(published, &status)
}

fn agree(published: i64, status: &GetStatusResponse) -> Result<(), Failure> {
    let all: i64 = status.outcomes.values().sum();
    let effects = status.outcomes.get("APPLIED").copied().unwrap_or_default();
    if (all, effects) == (published, published) {
        return Ok(());
    }
    Err(Failure::Runtime(format!(
        "{published} events were published and {effects} applied ({all} with all outcomes): the \
         figures of this run are worth nothing; look at the receiver with `counterfoil status`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_to_be_applied_once() {
        let status = |outcomes: &[(&str, i64)]| GetStatusResponse {
            outcomes: outcomes.iter().map(|&(name, count)| (name.to_owned(), count)).collect(),
            ..GetStatusResponse::default()
        };
        assert!(agree(0, &status(&[])).is_ok());
        assert!(agree(9, &status(&[("APPLIED", 9)])).is_ok());
        for wrong in [&[("APPLIED", 8)][..], &[("APPLIED", 10)], &[("APPLIED", 8), ("IGNORED", 1)]]
        {
            assert!(agree(9, &status(wrong)).is_err(), "{wrong:?}");
        }
    }
}
