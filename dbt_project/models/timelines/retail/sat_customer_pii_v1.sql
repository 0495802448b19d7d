{#- Written by `lakehouse scaffold`, its own while unchanged: 1515f70970d20364 -#}
{{ cdc_vault.timeline(
  source_model='sat_customer_pii',
  src_pk='hk_customer',
  src_hashdiff='hd_customer_pii',
  src_payload=['first_name', 'last_name', 'email'],
) }}
