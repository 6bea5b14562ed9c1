//! `counterfoil demo`: the main job on example data. Real processes, a real
//! death between commit and ack, and figures that somebody else worked out.

mod ledger;
mod totals;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use counterfoil::proto::{
    crash::RECEIVER_AFTER_COMMIT,
    pb::{
        GetLogRequest, GetStatusRequest, GetStatusResponse, Log, WaitAppliedRequest,
        WatchStatusRequest,
    },
};

use self::totals::Totals;
use crate::{
    arguments,
    failure::Failure,
    link,
    numbers::{grouped, rate},
    output::say,
    process::{self, Pair, Service, told_to_end},
    publish,
};

/// The commits that the receiver makes before the one after which it dies.
const COMMITS_BEFORE_DEATH: u32 = 20;
/// Longest time for anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nobody listens there: a receiver that is told this address stays for itself.
const NOWHERE: &str = "http://127.0.0.1:1";

/// Tells the story; exit code 0 only if all figures agree.
///
/// # Errors
/// [`Failure::Usage`] when the example files cannot be read, [`Failure::Runtime`]
/// when a part of the story does not come about.
pub async fn run(arguments: arguments::Demo) -> Result<ExitCode, Failure> {
    let expected = Totals::read(&arguments.events.with_extension("totals.json"))?;
    let mut pair = Pair::new(&std::env::temp_dir())?;
    let told = tokio::select! {
        told = story(&mut pair, &arguments.events, &expected) => {
            if told.is_err() {
                pair.show_logs();
            }
            told
        }
        name = told_to_end() => Err(Failure::Runtime(format!("ended by {name}"))),
    };
    // Whatever came of it: no process and no file is left behind.
    pair.kill().await;
    told
}

async fn story(pair: &mut Pair, events: &Path, expected: &Totals) -> Result<ExitCode, Failure> {
    pair.start_publisher().await?;
    let crash = format!("{RECEIVER_AFTER_COMMIT}={COMMITS_BEFORE_DEATH}*off->return");
    pair.start_receiver(&pair.publisher_url(), Some(&crash)).await?;
    say(format!("started    publisher {}", pair.publisher_url()));
    say(format!("           receiver  {}", pair.receiver_url()));

    let published = publish_all(pair, events).await?;
    say(format!("published  {published}"));

    let last = log(pair).await?.next_sequence.unwrap_or(0) - 1;
    let receiver_url = pair.receiver_url();
    let died = tokio::select! {
        died = pair.receiver_death(PATIENCE) => died?,
        // A receiver that dies breaks this watch off; only a survivor lets it end well.
        Ok(()) = wait_acked(&receiver_url, last) => return Err(survived()),
    };
    let acked_at_death = acked(&log(pair).await?);
    // Cut off from the publisher, the receiver tells what stands in its file.
    pair.start_receiver(NOWHERE, None).await?;
    let committed = sequence_of(&status(pair).await?);
    pair.stop(Service::Receiver).await?;
    say(format!("killed     the receiver, {died}:"));
    say(format!("           committed in its file {}", place(committed)));
    say(format!("           acknowledged          {}", place(acked_at_death)));
    if committed <= acked_at_death {
        return Err(Failure::Runtime("nothing was between commit and ack".to_owned()));
    }

    let restarted = Instant::now();
    pair.start_receiver(&pair.publisher_url(), None).await?;
    wait_applied(pair, last).await?;
    let seconds = restarted.elapsed().as_secs_f64();
    wait_acked(&pair.receiver_url(), last).await?;
    let rest = last - committed;
    say(format!(
        "restarted  the receiver on the same file: {} more events in {seconds:.1} s, {}",
        grouped(rest),
        rate(rest.unsigned_abs(), seconds)
    ));

    let found = totals::ask(pair, last, ledger::read(pair, events, last).await?).await?;
    let log = log(pair).await?;
    let published = log.next_sequence.unwrap_or(0);
    let applied = sequence_of(&status(pair).await?) + 1;
    let acked = acked(&log) + 1;
    say("");
    say(format!(
        "published {} = applied {} = acked {}",
        grouped(published),
        grouped(applied),
        grouped(acked)
    ));
    say("");
    say(totals::compare(&found, expected).trim_end());
    say("");
    for service in [Service::Receiver, Service::Publisher] {
        pair.stop(service).await?;
    }
    if found == *expected && published == applied && applied == acked {
        say("All equal. Each event has had its effect once, the crash notwithstanding.");
        return Ok(ExitCode::SUCCESS);
    }
    say("NOT EQUAL.");
    Ok(ExitCode::FAILURE)
}

async fn publish_all(pair: &Pair, events: &Path) -> Result<publish::Summary, Failure> {
    let arguments = arguments::Publish {
        source: arguments::Source { publisher: pair.publisher_url(), log: "main".to_owned() },
        file: events.to_owned(),
        key_field: None,
        in_flight: 1024,
        attempts: 12,
    };
    let (summary, ended) = publish::publish(&arguments).await?;
    ended?;
    if summary.refused > 0 {
        return Err(Failure::Runtime(format!("some events were refused:\n{summary}")));
    }
    Ok(summary)
}

async fn log(pair: &Pair) -> Result<Log, Failure> {
    let url = pair.publisher_url();
    let response = link::publisher(&url)?
        .get_log(link::call(GetLogRequest { log: String::new() }))
        .await
        .map_err(|status| Failure::call(&url, &status))?;
    response
        .into_inner()
        .log
        .ok_or_else(|| Failure::Runtime(format!("{url}: no log in the answer")))
}

async fn status(pair: &Pair) -> Result<GetStatusResponse, Failure> {
    let url = pair.receiver_url();
    let response = link::receiver(&url)?
        .get_status(link::call(GetStatusRequest {}))
        .await
        .map_err(|status| Failure::call(&url, &status))?;
    Ok(response.into_inner())
}

async fn wait_applied(pair: &Pair, sequence: i64) -> Result<(), Failure> {
    let url = pair.receiver_url();
    link::receiver(&url)?
        .wait_applied(link::within(WaitAppliedRequest { sequence }, PATIENCE))
        .await
        .map(drop)
        .map_err(|status| Failure::call(&url, &status))
}

async fn wait_acked(url: &str, sequence: i64) -> Result<(), Failure> {
    let failed = |status: tonic::Status| Failure::call(url, &status);
    let request = link::within(WatchStatusRequest {}, PATIENCE);
    let mut changes =
        link::receiver(url)?.watch_status(request).await.map_err(failed)?.into_inner();
    while let Some(change) = changes.message().await.map_err(failed)? {
        let acked = change.status.and_then(|status| status.acked).and_then(|acked| acked.sequence);
        if acked.is_some_and(|acked| acked >= sequence) {
            return Ok(());
        }
    }
    Err(Failure::Runtime(format!("{url}: the status ended before all was acknowledged")))
}

fn survived() -> Failure {
    Failure::Runtime(
        "the receiver did not die at its crash point: it was built without feature failpoints. \
         Build with: cargo build --release --features failpoints --bins"
            .to_owned(),
    )
}

fn sequence_of(status: &GetStatusResponse) -> i64 {
    status.cursor.as_ref().and_then(|cursor| cursor.sequence).unwrap_or(-1)
}

fn acked(log: &Log) -> i64 {
    let receiver = log.receivers.iter().find(|receiver| receiver.name == process::RECEIVER_NAME);
    receiver
        .and_then(|receiver| receiver.acked.as_ref())
        .and_then(|acked| acked.sequence)
        .unwrap_or(-1)
}

fn place(sequence: i64) -> String {
    if sequence < 0 { "nothing".to_owned() } else { format!("up to {}", grouped(sequence)) }
}
