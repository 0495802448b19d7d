{{ timeline(
  source_model='sat_customer_pii',
  src_pk='hk_customer',
  src_hashdiff='hd_customer_pii',
  src_payload=['first_name', 'last_name', 'email'],
) }}
