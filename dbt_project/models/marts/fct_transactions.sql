with details as (
  select * from {{ ref('sat_transaction_details_v1') }} where is_current and not is_deleted
),
parties as (
  select hk_transaction_store_customer
  from {{ ref('eff_sat_transaction_store_customer_v1') }}
  where is_current and is_active
)
select
  hub.hk_transaction,
  link.hk_store,
  link.hk_customer,
  hub.txn_id,
  store.store_id,
  customer.customer_id,
  details.txn_timestamp,
  details.total_amount,
  details.payment_method
from {{ ref('hub_transaction') }} as hub
join details on details.hk_transaction = hub.hk_transaction
join {{ ref('link_transaction_store_customer') }} as link on link.hk_transaction = hub.hk_transaction
join parties on parties.hk_transaction_store_customer = link.hk_transaction_store_customer
left join {{ ref('hub_store') }} as store on store.hk_store = link.hk_store
left join {{ ref('hub_customer') }} as customer on customer.hk_customer = link.hk_customer
