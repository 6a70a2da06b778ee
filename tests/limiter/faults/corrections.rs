//! Corrections that fail: they may have been made, and the next call completes them.

use std::time::Duration;

use sluicegate::AdjustError;
use sluicegate::error::SetupError;
use sluicegate::settings::{Certainty, StoreSettings};
use sluicegate_testkit::Fault;

use super::{AMPLE, DEADLINE, Disturbed, in_time, on_every_engine, rpm};
use crate::support::with_settings_of;

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_that_cannot_be_made_says_whether_it_may_have_been() {
    on_every_engine(async |on| {
        let patient = on.builder().deadline(AMPLE).build();
        let permit = ask!(patient, "v").await.unwrap();
        on.inject("UpdateItem", |_| Fault::THROTTLING);
        let error = in_time(permit.adjust("rpm", 1)).await.unwrap_err();
        assert!(matches!(error, AdjustError::Contended), "{error:?}");
        on.calm();
        let limiter = on.builder().deadline(DEADLINE).build();
        let permit = ask!(limiter, "u").await.unwrap();
        let other = ask!(limiter, "w").await.unwrap();
        on.inject("UpdateItem", |_| Fault::DENIED);
        let error = permit.adjust("rpm", 1).await.unwrap_err();
        assert!(matches!(error, AdjustError::Setup(SetupError::Denied(_))), "{error:?}");
        assert_eq!(limiter.counters().ambiguous.get(), 0);
        on.proxy.inject(|_| Fault::Cut);
        let error = in_time(permit.adjust("rpm", 1)).await.unwrap_err();
        assert!(matches!(error, AdjustError::Unavailable(_)), "{error:?}");
        let error = in_time(other.release()).await.unwrap_err();
        assert!(matches!(error, AdjustError::Ambiguous(_)), "{error:?}");
        assert_eq!((on.rpm("u").await, on.rpm("w").await), ((55, 5), (55, 5)));
    })
    .await;
}

/// Ends a correction whose parent cannot be reached; the child's needs less.
const HALF: Duration = Duration::from_secs(2);

impl Disturbed {
    /// Waits until a delayed request has had its effect.
    async fn late_landed(&self, fault: &Fault) {
        if matches!(fault, Fault::Late(_)) {
            self.all_landed("UpdateItem").await;
            self.all_landed("TransactWriteItems").await;
        }
    }

    /// Faults for every write of one bucket; it cannot be read either.
    fn cut_off(&self, entity: &str, fault: Fault) {
        let key = format!("ENTITY#{entity}\"");
        self.proxy.inject(move |call| match call.operation {
            _ if !String::from_utf8_lossy(call.body).contains(&key) => Fault::None,
            "GetItem" => Fault::Cut,
            _ => fault.clone(),
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_that_reached_one_of_two_buckets_can_be_completed() {
    let late = Fault::Late(HALF + Duration::from_secs(1));
    let cases = [
        (Fault::THROTTLING, Certainty::Remembered),
        (Fault::DENIED, Certainty::Remembered),
        (Fault::Cut, Certainty::Remembered),
        (Fault::LoseReply, Certainty::Remembered),
        (Fault::LoseReply, Certainty::Transactional),
        // Arrives when the repetition has long been answered.
        (late, Certainty::Remembered),
    ];
    on_every_engine(async |on| {
        for (n, (fault, certainty)) in cases.iter().enumerate() {
            let certainty = *certainty;
            let settings = StoreSettings { certainty, ..StoreSettings::default() };
            let limiter =
                with_settings_of(on.table.clone(), &on.clock, settings).deadline(HALF).build();
            let (child, parent) = (format!("c{n}"), format!("p{n}"));
            on.calm();
            on.proxy.reset_counts();
            let permit = ask!(limiter, &child, &parent).await.unwrap();
            on.cut_off(&parent, fault.clone());
            let error = in_time(permit.adjust("rpm", 7)).await.unwrap_err();
            let AdjustError::Partial { corrected, failed, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!((corrected.as_str(), failed.as_str()), (&*child, &*parent));
            assert!(error.may_be_repeated(), "{error:?}");
            on.calm();
            permit.adjust("rpm", 7).await.unwrap();
            on.late_landed(fault).await;
            assert_eq!(on.rpm(&child).await, (48, 12), "{fault:?}, {certainty:?}");
            assert_eq!(on.rpm(&parent).await, (48, 12), "{fault:?}, {certainty:?}");

            on.cut_off(&parent, fault.clone());
            let error = in_time(permit.give_back()).await.unwrap_err();
            assert_eq!(on.rpm(&child).await, (60, 0), "{fault:?}, {certainty:?}");
            on.calm();
            permit.give_back().await.unwrap();
            on.late_landed(fault).await;
            // Tokens that may have been given back are not given back again.
            let left = if *fault == Fault::Cut { (48, 12) } else { (60, 0) };
            let is_certain = matches!(fault, Fault::Refuse { .. });
            assert_eq!(error.may_be_repeated(), is_certain, "{error:?}");
            assert_eq!(on.rpm(&parent).await, left, "{fault:?}, {certainty:?}");
        }
    })
    .await;
}
