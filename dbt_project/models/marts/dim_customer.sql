with pii as (
  select * from {{ ref('sat_customer_pii_v1') }} where is_current and not is_deleted
),
loyalty as (
  select * from {{ ref('sat_customer_loyalty_v1') }} where is_current and not is_deleted
)
select
  hub.hk_customer,
  hub.customer_id,
  pii.first_name,
  pii.last_name,
  pii.email,
  loyalty.loyalty_tier,
  loyalty.created_at,
  greatest(pii.valid_from, loyalty.valid_from) as valid_from
from {{ ref('hub_customer') }} as hub
join pii on pii.hk_customer = hub.hk_customer
join loyalty on loyalty.hk_customer = hub.hk_customer
