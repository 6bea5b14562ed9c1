//! `counterfoil health`: asks grpc.health.v1, so that a container without a
//! shell can be checked by what it holds.

use std::{process::ExitCode, time::Duration};

use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    arguments,
    failure::{Failure, explain},
    link,
    output::say,
};

/// Shorter than the time that an orchestrator gives a check.
const LIMIT: Duration = Duration::from_secs(3);

/// Prints the status; exit code 0 only if it is SERVING.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub async fn run(arguments: arguments::Health) -> Result<ExitCode, Failure> {
    let mut client = HealthClient::new(link::channel(&arguments.url)?);
    let request = HealthCheckRequest { service: arguments.service.clone() };
    match client.check(link::within(request, LIMIT)).await {
        Ok(response) => {
            let status = response.into_inner().status();
            say(status.as_str_name());
            Ok(match status {
                ServingStatus::Serving => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            })
        }
        Err(status) if status.code() == Code::NotFound => {
            say(format!("SERVICE_UNKNOWN: {} is not served there", arguments.service));
            Ok(ExitCode::FAILURE)
        }
        Err(status) => {
            say(format!("UNREACHABLE: {}", explain(&status)));
            Ok(ExitCode::FAILURE)
        }
    }
}
