//! Keywords: the settings of a limiter, and the options of a request.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluicegate::leasing::LeasingStore;
use sluicegate::{AcquireRequest, LeaseMode, LeaseSettings, LimitSet, OnUnavailable};

use crate::amounts;
use crate::errors::invalid;
use crate::limit::{argument, limits, time};

/// The settings that limiters on all stores have.
pub(crate) struct Settings {
    limits: LimitSet,
    on_unavailable: OnUnavailable,
    leasing: Option<LeaseMode>,
    deadline: Option<Duration>,
    shadow: bool,
}

impl Settings {
    /// # Errors
    /// `TypeError` for an unknown keyword; `InvalidRequestError` for a value that is none of the choices.
    pub(crate) fn read(given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut settings = Self {
            limits: LimitSet::default(),
            on_unavailable: OnUnavailable::default(),
            leasing: None,
            deadline: None,
            shadow: false,
        };
        let (mut leasing, mut threshold) = (None, 100);
        for (name, value) in given.into_iter().flatten() {
            let name: &str = name.extract()?;
            match name {
                "limits" => {
                    settings.limits = LimitSet::new(limits(name, &value)?).map_err(invalid)?
                }
                "leasing" => leasing = argument::<Option<String>>(name, &value)?,
                "threshold" => threshold = argument(name, &value)?,
                "on_unavailable" => {
                    settings.on_unavailable = on_unavailable(&argument::<String>(name, &value)?)?
                }
                "deadline" => settings.deadline = time(name, &value)?,
                "shadow" => settings.shadow = argument(name, &value)?,
                other => return Err(unexpected(other)),
            }
        }
        settings.leasing = match leasing.as_deref() {
            None => None,
            Some("strict") => Some(LeaseMode::default()),
            Some("write_behind") => Some(LeaseMode::WriteBehind { threshold }),
            Some(other) => {
                let expected = "give \"strict\" or \"write_behind\"";
                return Err(invalid(format!("leasing is {other:?}: {expected}")));
            }
        };
        Ok(settings)
    }

    pub(crate) const fn leases(&self) -> bool {
        self.leasing.is_some()
    }

    /// A limiter with these settings, made in a runtime: leasing starts a task.
    pub(crate) fn limiter<S: LeasingStore>(self, store: S) -> sluicegate::Limiter {
        let mut builder = sluicegate::Limiter::builder(store)
            .default_limits(self.limits)
            .on_unavailable(self.on_unavailable);
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        if self.shadow {
            builder = builder.shadow();
        }
        match self.leasing {
            Some(mode) => {
                builder.leasing(LeaseSettings { mode, ..LeaseSettings::default() }).build()
            }
            None => builder.build(),
        }
    }
}

fn on_unavailable(name: &str) -> PyResult<OnUnavailable> {
    match name {
        "allow" => Ok(OnUnavailable::Allow),
        "deny" => Ok(OnUnavailable::Deny),
        "local" => Ok(OnUnavailable::Local),
        other => {
            let expected = "give \"allow\", \"deny\" or \"local\"";
            Err(invalid(format!("on_unavailable is {other:?}: {expected}")))
        }
    }
}

fn unexpected(name: &str) -> PyErr {
    PyTypeError::new_err(format!("got an unexpected keyword argument '{name}'"))
}

/// A request with its options.
///
/// # Errors
/// `TypeError` for an unknown keyword; `InvalidRequestError` for amounts and limits that are not valid.
pub(crate) fn request(
    entity: &str,
    resource: &str,
    consume: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<AcquireRequest<()>> {
    let mut request = amounts::consume(AcquireRequest::new(entity, resource), consume)?;
    let (mut parent, mut no_cascade) = (None, false);
    for (name, value) in options.into_iter().flatten() {
        let name: &str = name.extract()?;
        request = match name {
            "limits" => request.limits(limits(name, &value)?),
            "parent_limits" => {
                let limits = limits(name, &value)?;
                if limits.is_empty() { request } else { request.parent_limits(limits) }
            }
            "parent" => {
                parent = argument::<Option<String>>(name, &value)?;
                request
            }
            "no_cascade" => {
                no_cascade = argument(name, &value)?;
                request
            }
            "wait" => match time(name, &value)? {
                Some(wait) => request.wait_up_to(wait),
                None => request,
            },
            "deadline" => match time(name, &value)? {
                Some(deadline) => request.deadline(deadline),
                None => request,
            },
            other => return Err(unexpected(other)),
        };
    }
    match (parent, no_cascade) {
        (None, false) => Ok(request),
        (None, true) => Ok(request.no_cascade()),
        (Some(parent), false) => Ok(request.cascade_to(parent)),
        (Some(_), true) => Err(invalid("give parent or no_cascade, not both")),
    }
}
