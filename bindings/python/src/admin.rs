//! Stored limits and entities, through the limiter.

use pyo3::prelude::*;
use sluicegate::dynamo::{ConfigError, TableSetupError, create_table};
use sluicegate::types::{EntityRecord, LimitName, StoredLimits};
use sluicegate::{DynamoStore, EntityId};

use crate::call::{Begin, Call, ready};
use crate::errors::{SetupError, invalid, of_config, text};
use crate::limit::{Limit, limits, scope};
use crate::limiter::Limiter;

/// The stored record of an entity.
#[pyclass(frozen, get_all, eq, hash, module = "sluicegate")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Entity {
    entity: String,
    /// Its parent.
    parent: Option<String>,
    /// True if its requests take from the parent's bucket too.
    cascade: bool,
}

#[pymethods]
impl Entity {
    fn __repr__(&self) -> String {
        let Self { entity, parent, cascade } = self;
        let cascade = if *cascade { "True" } else { "False" };
        let parent = parent.as_ref().map_or("None".to_owned(), |parent| format!("{parent:?}"));
        format!("Entity(entity={entity:?}, parent={parent}, cascade={cascade})")
    }
}

fn shown(stored: Option<StoredLimits>) -> Vec<Limit> {
    let rules = stored.map(|stored| stored.rules).unwrap_or_default();
    rules.iter().map(|(name, rule)| sluicegate::Limit::from_rule(name, *rule).into()).collect()
}

#[pymethods]
impl Limiter {
    /// Creates the table in DynamoDB, if there is none of its name: on demand, with its indexes,
    /// its stream and TTL. The function that counts usage is deployed by `template.yaml`.
    fn create_table(&self) -> PyResult<Call> {
        let store = self.inner.store::<DynamoStore>();
        let table = store.ok_or_else(|| of_config(&ConfigError::NotDynamo))?.table();
        let (client, name) = (table.client().clone(), table.name().to_owned());
        Call::new(self.home, Begin::OnRuntime, "create_table", async move {
            let created = create_table(&client, &name).await;
            ready(move |py| match created {
                Ok(()) | Err(TableSetupError::Exists { .. }) => Ok(py.None()),
                Err(error) => Err(SetupError::new_err(text(&error))),
            })
        })
    }

    /// Stores limits for one entity and resource, for an entity, for a resource, or for all; others
    /// that are stored there stay. The limits that stand.
    #[pyo3(signature = (limits, *, entity=None, resource=None))]
    fn set_limits(
        &self,
        limits: &Bound<'_, PyAny>,
        entity: Option<&str>,
        resource: Option<&str>,
    ) -> PyResult<Call> {
        let (limits, scope) = (self::limits("limits", limits)?, scope(entity, resource)?);
        self.configure("set_limits", |limiter| async move {
            Ok(shown(Some(limiter.set_limits(&scope, &limits).await?)))
        })
    }

    /// Deletes stored limits by name. The limits that are left.
    #[pyo3(signature = (names, *, entity=None, resource=None))]
    fn delete_limits(
        &self,
        names: Vec<String>,
        entity: Option<&str>,
        resource: Option<&str>,
    ) -> PyResult<Call> {
        let names = names.iter().map(LimitName::new).collect::<Result<Vec<_>, _>>();
        let (names, scope) = (names.map_err(invalid)?, scope(entity, resource)?);
        self.configure("delete_limits", |limiter| async move {
            Ok(shown(limiter.delete_limits(&scope, &names).await?))
        })
    }

    /// The limits that are stored at one level.
    #[pyo3(signature = (*, entity=None, resource=None))]
    fn stored_limits(&self, entity: Option<&str>, resource: Option<&str>) -> PyResult<Call> {
        let scope = scope(entity, resource)?;
        self.configure("stored_limits", |limiter| async move {
            Ok(shown(limiter.stored_limits(&scope).await?))
        })
    }

    /// Stores the parent of an entity, and if its requests take from the parent's bucket too.
    #[pyo3(signature = (entity, *, parent=None, cascade=true))]
    fn put_entity(&self, entity: &str, parent: Option<&str>, cascade: bool) -> PyResult<Call> {
        let entity = EntityId::new(entity).map_err(invalid)?;
        let parent = parent.map(EntityId::new).transpose().map_err(invalid)?;
        let cascade = cascade && parent.is_some();
        let record = EntityRecord { entity, parent, cascade };
        self.configure("put_entity", |limiter| async move {
            limiter.put_entity(&record).await.map(|()| None::<bool>)
        })
    }

    /// The stored record of an entity.
    fn entity(&self, entity: &str) -> PyResult<Call> {
        let entity = EntityId::new(entity).map_err(invalid)?;
        self.configure("entity", |limiter| async move {
            let record = limiter.entity(&entity).await?;
            Ok(record.map(|EntityRecord { entity, parent, cascade }| {
                let parent = parent.map(|parent| parent.to_string());
                Entity { entity: entity.to_string(), parent, cascade }
            }))
        })
    }

    /// Deletes the stored record of an entity; its buckets and usage stay.
    fn delete_entity(&self, entity: &str) -> PyResult<Call> {
        let entity = EntityId::new(entity).map_err(invalid)?;
        self.configure("delete_entity", |limiter| async move {
            limiter.delete_entity(&entity).await.map(|()| None::<bool>)
        })
    }
}

impl Limiter {
    fn configure<F, T>(
        &self,
        name: &'static str,
        work: impl FnOnce(sluicegate::Limiter) -> F,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<T, ConfigError>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let work = work(self.inner.clone());
        Call::new(self.home, Begin::OnRuntime, name, async move {
            let result = work.await;
            ready(move |_| result.map_err(|error| of_config(&error)))
        })
    }
}
