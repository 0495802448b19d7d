{{ timeline(
  source_model='sat_customer_loyalty',
  src_pk='hk_customer',
  src_hashdiff='hd_customer_loyalty',
  src_payload=['loyalty_tier', 'created_at'],
) }}
