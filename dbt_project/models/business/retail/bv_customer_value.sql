with customers as (
  select hk_customer, loyalty_tier
  from {{ ref('sat_customer_loyalty_v1') }}
  where is_current and not is_deleted
),
sales as (
  select link.hk_customer, details.total_amount, details.txn_timestamp
  from {{ ref('link_transaction_store_customer') }} as link
  join {{ ref('eff_sat_transaction_store_customer_v1') }} as effectivity
    on effectivity.hk_transaction_store_customer = link.hk_transaction_store_customer
  join {{ ref('sat_transaction_details_v1') }} as details on details.hk_transaction = link.hk_transaction
  where effectivity.is_current and effectivity.is_active and details.is_current and not details.is_deleted
)
select
  hub.hk_customer,
  hub.customer_id,
  customers.loyalty_tier,
  count(sales.hk_customer) as transactions,
  coalesce(sum(sales.total_amount), 0) as revenue,
  cast(avg(sales.total_amount) as decimal(38, 2)) as average_sale,
  min(sales.txn_timestamp) as first_sale_at,
  max(sales.txn_timestamp) as last_sale_at
from {{ ref('hub_customer') }} as hub
join customers on customers.hk_customer = hub.hk_customer
left join sales on sales.hk_customer = hub.hk_customer
group by hub.hk_customer, hub.customer_id, customers.loyalty_tier
